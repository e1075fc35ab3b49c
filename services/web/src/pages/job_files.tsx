// What a job left: files of its outputs, and where else it shows its training.

import { useState } from "preact/hooks";

import { answered, api, open, type Schemas } from "../api";
import { useAsked } from "../asking";
import { bytes, NS } from "../format";
import { At, Card, Command, Empty, Problem, Wide } from "../parts/basics";
import { saved } from "../parts/download";
import { query, setQuery } from "../router";
import type { Job } from "../rows";

/** A browser keeps a file in memory until it is whole; `skep cp` writes as it comes. */
const BYTES_MAX = 2 * 1024 ** 3;

interface OneFile {
  node: string;
  path: string;
  size: number;
  at: number;
}

/** Outputs and links. */
export function Files({ row }: { row: Job }) {
  return (
    <>
      <Outputs row={row} />
      <Links row={row} />
    </>
  );
}

function Outputs({ row }: { row: Job }) {
  const { job } = row;
  const attempt = query.value.get("attempt") ?? "latest";
  const [failed, setFailed] = useState("");
  const { value, problem } = useAsked(
    async () =>
      row.attempt
        ? answered(
            api.GET("/v1/jobs/{job}/outputs", {
              params: { path: { job }, query: attempt === "latest" ? {} : ({ attempt } as never) },
            }),
          )
        : null,
    [job, row.state, row.attempt, attempt],
  );
  const nodes = value?.nodes ?? [];
  const files = nodes.flatMap((node) =>
    node.files.map((file): OneFile => {
      const [path, size, at] = file as [string, number, number];
      return { node: node.node, path, size, at };
    }),
  );
  return (
    <Card
      title="Outputs"
      aside={
        <Command
          line={`skep artifacts ${job}${attempt === "latest" ? "" : ` --attempt ${attempt}`}`}
        />
      }
    >
      {row.attempt > 1 && (
        <div class="controls inside">
          <label>
            Attempt{" "}
            <select
              value={attempt}
              onChange={(event) => setQuery({ attempt: event.currentTarget.value })}
            >
              <option value="latest">latest</option>
              {Array.from({ length: row.attempt }, (_, one) => (
                <option key={one}>{one + 1}</option>
              ))}
            </select>
          </label>
        </div>
      )}
      <Problem text={failed || problem} />
      {nodes
        .filter((one) => one.away)
        .map((one) => (
          <p class="problem" key={one.node}>
            {one.node} does not answer: what it has is not listed.
          </p>
        ))}
      {nodes
        .filter((one) => one.more)
        .map((one) => (
          <p class="inside dim" key={one.node}>
            {one.node} has more files than are listed.
          </p>
        ))}
      {!files.length && !problem && (
        <Empty>
          {row.attempt ? (
            <>
              It has no outputs. A spec names them: <code>outputs: [checkpoints/]</code>.
            </>
          ) : (
            "It has not started yet."
          )}
        </Empty>
      )}
      {files.length > 0 && (
        <Wide label="Files">
          <table class="plain">
            <thead>
              <tr>
                <th>Path</th>
                <th class="right">Size</th>
                <th class="optional">Written</th>
                <th class="optional">Node</th>
                <th>
                  <span class="hidden">Download</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {files.map(({ node, path, size, at }) => (
                <tr key={node + path}>
                  <td class="mono path">{path}</td>
                  <td class="right">{bytes(size)}</td>
                  <td class="optional">
                    <At at={at * NS} />
                  </td>
                  <td class="optional">{node}</td>
                  <td class="right">
                    <Get
                      job={job}
                      node={node}
                      path={path}
                      size={size}
                      attempt={attempt}
                      onFailed={setFailed}
                    />
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

function Get(props: {
  job: string;
  node: string;
  path: string;
  size: number;
  attempt: string;
  onFailed: (text: string) => void;
}) {
  const { job, node, path } = props;
  const [got, setGot] = useState<number | null>(null);
  if (props.size > BYTES_MAX) return <Command line={`skep cp ${job}:${path} .`} />;
  const get = async () => {
    props.onFailed("");
    try {
      const asked = new URLSearchParams({ path, node, attempt: props.attempt });
      const response = await open(`/v1/jobs/${encodeURIComponent(job)}/outputs/file?${asked}`);
      await saved(response, path.split("/").at(-1) ?? "output", setGot);
    } catch (error) {
      props.onFailed(`${path}: ${(error as Error).message}`);
    }
    setGot(null);
  };
  return (
    <button
      type="button"
      disabled={got !== null}
      aria-label={`Download ${path}`}
      onClick={() => void get()}
    >
      {got === null ? "Download" : bytes(got)}
    </button>
  );
}

function Links({ row }: { row: Job }) {
  const { job } = row;
  const { value, problem } = useAsked(
    () => answered(api.GET("/v1/jobs/{job}/links", { params: { path: { job } } })),
    [job, row.state, row.attempt],
  );
  return (
    <Card title="Where it shows its training" aside={<Command line={`skep show ${job}`} />}>
      <Problem text={problem} />
      {value && !value.log && (
        <p class="inside dim">Its log could not be read: there may be more.</p>
      )}
      {value && !value.links.length && (
        <Empty>No W&B run and no TensorBoard folder is known of it.</Empty>
      )}
      <ul class="list">
        {value?.links.map((one) => (
          <li key={one.url + one.folder}>
            <OneLink link={one} job={job} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

function OneLink({ link, job }: { link: Schemas["Link"]; job: string }) {
  const name = link.kind === "wandb" ? "Weights & Biases" : "TensorBoard";
  // The gateway takes only addresses of http and https; the page does not trust that either.
  const safe = /^https?:\/\//.test(link.url ?? "");
  return (
    <div class="what">
      <b>{name}</b>
      {safe && (
        <a href={link.url} target="_blank" rel="noopener noreferrer">
          {link.url}
        </a>
      )}
      {link.folder && (
        <>
          <code>{link.folder}</code> <Command line={`skep tensorboard ${job}`} />
        </>
      )}
    </div>
  );
}
