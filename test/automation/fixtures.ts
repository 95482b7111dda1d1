import assert from 'node:assert/strict'
import { sql } from '#core/db/sql.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { startTarget, type Target } from '../execution/tool-target.ts'
import { eventually } from '../support/app.ts'

/** What a caller of these tests may do: no more than its orchestrations, and the tools it makes for them. */
export const RUN_ACTIONS = [
  'orchestrations:*',
  'tools:CreateTool',
  'tools:CallTool',
  'approvals:*',
  'memories:*',
  'knowledge:*',
  'documents:*',
  'events:*',
  'exceptions:*',
  'activity:*',
  'usage:*',
  'generations:*',
  'agents:*',
  'guardrails:*',
]

export type RunApp = AgentApp & {
  target: Target
  /** A tool that calls the target below a path. */
  tool(fields?: object): Promise<string>
  orchestration(nodes: object[], edges?: object[], more?: object): Promise<string>
  /** Starts a run and returns it; waits unless `wait` is false. */
  start(orchestrationId: string, body?: object): Promise<any>
  /** A run of a new orchestration. */
  run(nodes: object[], edges?: object[], body?: object): Promise<any>
  read(runId: string): Promise<any>
  /** Waits until no message of a run is left to be handled. */
  idle(runId: string): Promise<void>
  /** Returns a run once it meets a condition. Default: when it has ended. */
  until(runId: string, is?: (run: any) => boolean): Promise<any>
}

/** An application with what runs need: a model, a tool's target, a key of a project. */
export async function startRunApp(options: Parameters<typeof startAgentApp>[0] = {}): Promise<RunApp> {
  const target = await startTarget()
  const app = await startAgentApp({
    workers: ['orchestration', 'generation', 'delivery'],
    actions: RUN_ACTIONS,
    ...options,
    env: { EGRESS_ALLOW_HOSTS: '127.0.0.1', ...options.env },
  })
  const created = async (path: string, body: object, status = 201) => {
    const reply = await app.key.post(path, body)
    assert.equal(reply.status, status, JSON.stringify(reply.body))
    return reply.body
  }
  let counter = 0
  const orchestration = async (nodes: object[], edges: object[] = [], more: object = {}) =>
    (await created('/orchestrations', { name: `graph ${++counter}`, nodes, edges, ...more })).id as string
  const start = (orchestration_id: string, body: object = {}) =>
    created('/orchestration-runs', { orchestration_id, wait: true, ...body })
  const read = async (id: string) => {
    const reply = await app.key.get(`/orchestration-runs/${id}`)
    assert.equal(reply.status, 200, JSON.stringify(reply.body))
    return reply.body
  }
  return {
    ...app,
    target,
    tool: async (fields = {}) =>
      (await created('/tools', { name: `tool_${++counter}`, type: 'http', execute: { url: target.url }, ...fields }))
        .id,
    orchestration,
    start,
    run: async (nodes, edges, body) => start(await orchestration(nodes, edges), body),
    read,
    async idle(id) {
      const waiting = sql.unsafe`
        select count(*)::int from pgboss.job 
        where name not like '%.dead' and state in ('created', 'retry', 'active') and data ->> 'run_id' = ${id}`
      await eventually(async () => (await app.pool.oneFirst(waiting)) === 0, { what: `no messages of ${id}` })
    },
    async until(id, is = ended) {
      let found: any
      await eventually(async () => is((found = await read(id))), { what: `run ${id} in the expected state` })
      return found
    },
    async close() {
      await app.close()
      await target.close()
    },
  }
}

export const ended = ({ status }: { status: string }): boolean =>
  ['succeeded', 'failed', 'cancelled', 'expired'].includes(status)

/** Edges of a chain of nodes. */
export const chain = (...ids: string[]): object[] => ids.slice(1).map((to, index) => ({ from: ids[index], to }))

/** Attempts of a run as `node:attempt:status`. */
export const attempts = (run: any): string[] =>
  run.node_executions.map(({ node_id, attempt, status }: any) => `${node_id}:${attempt}:${status}`)

/** A node that completes immediately with the artifact `{ result }` of an expression. */
export const set = (id: string, expression: unknown = id, more: object = {}) => ({
  id,
  type: 'transform',
  expression,
  ...more,
})
