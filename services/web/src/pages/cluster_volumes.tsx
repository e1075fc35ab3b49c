// The volumes: folders of the nodes that jobs ask for by name, and who may use them.

import { answered, api } from "../api";
import { useAsked } from "../asking";
import { Card, Empty, Problem, Wide } from "../parts/basics";
import { VcName } from "../parts/vcs";
import { may } from "../session";

interface Volume {
  volume: string;
  path: string;
  variable: string;
  /** `ro` or `rw` by virtual cluster. */
  vcs: Record<string, string>;
  is: string;
  by: string;
  mounted: boolean;
}

const MODES: Record<string, string> = { ro: "to read", rw: "to read and write" };

/** The tab of the page of the cluster. */
export function VolumesView() {
  const { value, problem } = useAsked(() => answered(api.GET("/v1/volumes")), []);
  const volumes = (value?.volumes ?? []) as unknown as Volume[];
  return (
    <Card
      title="Volumes"
      aside={may("set-vcs") && <a href="/tenants?tab=file">edit the cluster file</a>}
    >
      <Problem text={problem} />
      {!value && !problem && <Empty>Loading …</Empty>}
      {value && !volumes.length && (
        <Empty>
          There are none. An operator names folders of the nodes in the cluster file, under{" "}
          <code>volumes</code>; a job asks for one by <code>volumes: [NAME]</code>.
        </Empty>
      )}
      {volumes.length > 0 && (
        <Wide label="Volumes">
          <table class="plain">
            <thead>
              <tr>
                <th>Volume</th>
                <th>On the nodes</th>
                <th>In a job</th>
                <th>What is mounted there</th>
                <th>Who may use it</th>
              </tr>
            </thead>
            <tbody>
              {volumes.map((one) => (
                <tr key={one.volume}>
                  <th scope="row">{one.volume}</th>
                  <td class="mono">{one.path}</td>
                  <td class="mono">${one.variable}</td>
                  <td>{one.is ? `${one.is}, by ${one.by}` : "nothing: it is a folder"}</td>
                  <td>
                    {Object.entries(one.vcs).map(([vc, mode]) => (
                      <div key={vc}>
                        <VcName vc={vc} /> <span class="dim">{MODES[mode] ?? mode}</span>
                      </div>
                    ))}
                    {!Object.keys(one.vcs).length && <span class="dim">no virtual cluster</span>}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
    </Card>
  );
}
