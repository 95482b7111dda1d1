import assert from 'node:assert/strict'
import { countStatement } from '#core/db/sql.ts'
import { evalItemWork } from '#evaluation/eval-runs/process-item.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

/** What the key of a test may do. */
export const EVAL_ACTIONS = [
  'evaluations:*',
  'agents:*',
  'generations:*',
  'events:*',
  'usage:*',
  'tools:*',
  'deciders:*',
  'triggers:*',
  'projects:*',
]

export type EvalApp = AgentApp & {
  lanes: ReturnType<typeof client>
  /** An agent that answers the text of a prompt after `say `, and otherwise `Yes`. */
  echo(lane: string, rules?: object[], fields?: object): Promise<string>
  dataset(items: readonly object[]): Promise<string>
  eval(fields: object): Promise<any>
  /** Runs an eval and waits for the end of the run. */
  run(evalId: string, body?: object): Promise<any>
  results(run: { id: string; eval_id: string }, query?: string): Promise<any[]>
}

export const item = (content: string, expected_output?: string | null, metadata?: object | null) => ({
  input: [{ role: 'user', content }],
  expected_output,
  metadata,
})

let counter = 0

export async function made(key: Client, path: string, body: object): Promise<any> {
  return createdBy(key, path, body)
}

export function refused(reply: { status: number; body: any }, status: number, code: string, path?: string): void {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  if (path !== undefined) assert.equal(reply.body.error.meta.problems[0].path, path)
}

/** A quota that the first turn of an agent uses up. Returns its id. */
export const quotaOfOneTurn = async (app: EvalApp, agent_id: string): Promise<string> =>
  (
    await made(app.admin, '/quotas', {
      project_id: app.projectId,
      scope: 'agent',
      scope_ref: agent_id,
      metric: 'tokens',
      window: 'rolling_24h',
      limit: 1,
      mode: 'enforce',
    })
  ).id

/** A run once it has ended. */
export const ended = (key: Client, run: { id: string; eval_id: string }): Promise<any> =>
  eventually(
    async () => {
      const { body } = await key.get(`/evals/${run.eval_id}/runs/${run.id}`)
      return ['completed', 'failed', 'canceled'].includes(body.status) ? body : null
    },
    { what: `end of ${run.id}` },
  )

/** Number of items of a run that wait without a message, as in a paused project. */
export const heldItems = (app: EvalApp, run: { id: string }): Promise<number> =>
  app.pool.oneFirst(countStatement`
    select count(*) as count from eval_results r where eval_run_id = ${run.id} and state = 'queued' and not exists (
      select from pgboss.job j where j.name = ${evalItemWork.name} and j.data ->> 'work_id' = r.id and j.state < 'completed')`)

export async function startEvalApp(options: Parameters<typeof startAgentApp>[0] = {}): Promise<EvalApp> {
  const app = await startAgentApp({ workers: ['generation', 'evaluation'], actions: EVAL_ACTIONS, ...options })
  const lanes = client(app.double)
  const dataset = async (items: readonly object[]): Promise<string> => {
    const { id } = await made(app.key, '/datasets', { name: `set ${++counter}` })
    for (const each of items) await made(app.key, `/datasets/${id}/items`, each)
    return id
  }
  return {
    ...app,
    lanes,
    dataset,
    async echo(lane, rules = [{ reply: { text: 'Yes' } }], fields = {}) {
      await lanes.put(lane, { rules })
      return app.agent({ model: `${lane}/m`, ...fields })
    },
    eval: fields => made(app.key, '/evals', { name: `eval ${++counter}`, ...fields }),
    async run(evalId, body = {}) {
      return createdBy(app.key, `/evals/${evalId}/runs`, { wait: true, ...body })
    },
    async results(run, query = '') {
      const { status, body } = await app.key.get(`/evals/${run.eval_id}/runs/${run.id}/results${query}`)
      assert.equal(status, 200, JSON.stringify(body))
      return body.data
    },
  }
}
