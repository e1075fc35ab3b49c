import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// The gateway serves what is built here. `npm run dev` passes the API on to a gateway, which
// SKEP_API names.
const gateway = process.env["SKEP_API"] ?? "http://127.0.0.1:8470";

export default defineConfig({
  plugins: [preact()],
  build: {
    // `tools.web` names another folder to compare with.
    outDir: process.env["SITE"] ?? "../skep_services/gateway/site",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  server: { proxy: { "/v1": gateway } },
});
