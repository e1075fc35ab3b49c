// The entry: takes a token from the address, and draws the application.

import "./styles.css";

import { render } from "preact";

import { App } from "./app";
import { takeLoginFromAddress } from "./login";
import { followLinks } from "./router";
import { takeTokenFromAddress } from "./session";

takeTokenFromAddress();
takeLoginFromAddress();
followLinks();
const root = document.getElementById("app");
if (root) render(<App />, root);
