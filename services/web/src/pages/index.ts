// The pages there are: where each is in the address bar, and who is offered it.

import type { ComponentType } from "preact";

import { nameIn } from "../router";
import { may } from "../session";
import { AuditPage } from "./audit";
import { ClusterPage } from "./cluster";
import { ComparePage } from "./compare";
import { EventsPage } from "./events";
import { JobPage } from "./job";
import { JobsPage } from "./jobs";
import { LedgerPage } from "./ledger";
import { OverviewPage } from "./overview";
import { PeoplePage } from "./people";
import { MePage, PersonPage } from "./person";
import { PoliciesPage } from "./policies";
import { ReplayPage } from "./replay";
import { SearchPage } from "./search";
import { SearchesPage } from "./searches";
import { ServicePage } from "./service";
import { ServicesPage } from "./services";
import { SubmitPage } from "./submit";
import { TenantPage } from "./tenant";
import { TenantsPage } from "./tenants";

export interface PageOf {
  name: string;
  path: string;
  inNavigation: boolean;
  matches: (path: string) => boolean;
  titleOf: (path: string) => string;
  /** Paths with the same key are one page that changes; with another key it begins anew. */
  keyOf: (path: string) => string;
  offered: () => boolean;
  Page: ComponentType;
}

function page(name: string, path: string, Page: ComponentType, offered = () => true): PageOf {
  return {
    name,
    path,
    Page,
    offered,
    inNavigation: true,
    matches: (shown) => shown === path,
    titleOf: () => name,
    keyOf: () => path,
  };
}

function detail(name: string, under: string, Page: ComponentType): PageOf {
  const nameOf = (path: string) => nameIn(path, under);
  return {
    name,
    path: under,
    Page,
    offered: () => true,
    inNavigation: false,
    matches: (shown) => shown.startsWith(`${under}/`) && shown.length > under.length + 1,
    titleOf: nameOf,
    keyOf: (path) => path,
  };
}

export const pages: PageOf[] = [
  page("Overview", "/", OverviewPage),
  page("Jobs", "/jobs", JobsPage),
  detail("Job", "/jobs", JobPage),
  { ...page("Compare jobs", "/compare", ComparePage), inNavigation: false },
  page("Submit", "/submit", SubmitPage, () => may("submit")),
  page("Cluster", "/cluster", ClusterPage, () => may("see-cluster")),
  page("Tenants", "/tenants", TenantsPage, () => may("see-reports")),
  detail("Tenant", "/tenants", TenantPage),
  page("Searches", "/searches", SearchesPage),
  detail("Search", "/searches", SearchPage),
  page("Services", "/services", ServicesPage),
  detail("Service", "/services", ServicePage),
  page("Ledger", "/ledger", LedgerPage, () => may("see-reports")),
  page("Policies", "/policies", PoliciesPage, () => may("see-reports")),
  page("Replay", "/replay", ReplayPage, () => may("set-vcs")),
  page("Events", "/events", EventsPage),
  page("People", "/people", PeoplePage, () => may("manage-people") || may("manage-vc-people")),
  detail("Person", "/people", PersonPage),
  page("Audit", "/audit", AuditPage, () => may("see-audit") || may("see-vc-audit")),
  page("Account", "/me", MePage),
];
