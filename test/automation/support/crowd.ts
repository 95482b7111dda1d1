import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'
import type { GraphDefinition } from '#automation/orchestrations/definition/model.ts'
import type { Client, Reply } from '../../support/app.ts'
import { answerOf } from './answers.ts'
import { CHILD_NAMES, type ChildName, childOf } from './children.ts'
import { EVENTS, type References } from './graphs.ts'
import type { ShownRun, World } from './interpreter.ts'
import type { ToolDouble } from './tool-double.ts'

/** What a key needs to make orchestrations, run them and read their results. */
export const CROWD_ACTIONS = ['orchestrations:*', 'tools:*', 'events:*', 'approvals:*']

type RequiredAction = {
  type: string
  node_id: string | null
  approval_id: string | null
  orchestration_run_id: string | null
}

type Execution = ShownRun['node_executions'][number] & {
  node_type: string
  idempotency_key: string | null
  completed_at: string | null
  generation_id: string | null
  approval_id: string | null
}

/** A run as its record shows it. */
export type Run = Omit<ShownRun, 'node_executions' | 'required_actions'> & {
  id: string
  orchestration_id: string
  parent_orchestration_run_id: string | null
  parent_node_id: string | null
  required_actions: RequiredAction[]
  node_executions: Execution[]
}

export const hasEnded = ({ status }: { status: string }): boolean =>
  ['succeeded', 'failed', 'cancelled', 'expired'].includes(status)

/** What a call answered, or an error that says the answer that came in its place. */
export function taken({ status, body }: Reply, ...statuses: number[]): any {
  if (!statuses.includes(status)) throw new Error(`answered ${status}: ${JSON.stringify(body)}`)
  return body
}

/** Makes an orchestration and answers its id. */
export async function orchestration(key: Client, definition: GraphDefinition, name = 'graph'): Promise<string> {
  const { nodes, edges } = definition
  return taken(await key.post('/orchestrations', { name, nodes, edges }), 201).id
}

/** A project's tool that calls the double, the graphs that others run, and what the interpreter requires of them. */
export async function cast(key: Client, double: ToolDouble): Promise<{ references: References; world: World }> {
  const execute = { url: double.url, method: 'POST' }
  const tool: string = taken(await key.post('/tools', { name: 'act', execute, idempotent: true }), 201).id
  const ids = new Map<ChildName, string>()
  const definitions = new Map<string, GraphDefinition>()
  const child = (name: ChildName | string) => ids.get(name as ChildName) ?? assert.fail(`there is no graph ${name} yet`)
  for (const name of CHILD_NAMES) {
    const { definition } = childOf(name, { tool, child })
    const id = await orchestration(key, definition, name)
    ids.set(name, id)
    definitions.set(id, definition)
  }
  return {
    references: { tool, child },
    world: { definition: id => definitions.get(id) ?? assert.fail(`there is no orchestration ${id}`) },
  }
}

/** Calls again, for a minute or so, without an answer or while the answer is that the database is away. */
export function patient(key: Client): Client {
  const again = async (send: () => Promise<Reply>): Promise<Reply> => {
    for (let tries = 1; ; tries++) {
      const reply = await send().catch(error => {
        if (tries > 300) throw error
        return null
      })
      if (reply && (reply.status < 500 || tries > 300)) return reply
      await sleep(200)
    }
  }
  return {
    token: key.token,
    get: (...args) => again(() => key.get(...args)),
    post: (...args) => again(() => key.post(...args)),
    put: (...args) => again(() => key.put(...args)),
    patch: (...args) => again(() => key.patch(...args)),
    delete: (...args) => again(() => key.delete(...args)),
  }
}

export async function start(key: Client, orchestration_id: string, input: object, wait = false): Promise<Run> {
  return taken(await key.post('/orchestration-runs', { orchestration_id, input, wait }), 201)
}

export async function readRun(key: Client, id: string): Promise<Run> {
  return taken(await key.get(`/orchestration-runs/${id}`), 200)
}

/** Answers what a run and those that it waits for request from people; returns the number of answers. */
async function answer(key: Client, run: Run): Promise<number> {
  let answered = 0
  for (const { type, node_id, orchestration_run_id, approval_id } of run.required_actions) {
    if (type === 'human_input' || type === 'webhook_receive') {
      const body = { node_id, output: answerOf(node_id as string), wait: false }
      const reply = await key.post(`/orchestration-runs/${run.id}/human-input`, body)
      // A run that ended meanwhile, or whose answer was taken without a response, refuses.
      const late = ['ORCHESTRATION_RUN_NOT_AWAITING_INPUT', 'ORCHESTRATION_HUMAN_NODE_MISMATCH']
      if (!late.includes(reply.body?.error?.code)) taken(reply, 200)
      answered++
    } else if (type === 'approval') {
      const reply = await key.post(`/approvals/${approval_id}/approve`, {})
      if (reply.status !== 409) taken(reply, 200)
      answered++
    } else if (type === 'nested_run') answered += await answer(key, await readRun(key, orchestration_run_id as string))
  }
  return answered
}

/** The record of a run when it has ended; on the way there, its requests are answered. */
export async function ended(key: Client, id: string, within = 120_000): Promise<Run> {
  const deadline = Date.now() + within
  for (let pause = 10; ; ) {
    const run = await readRun(key, id)
    if (hasEnded(run)) return run
    if (Date.now() > deadline) throw new Error(`a run did not end:\n${(await treeOf(key, run)).join('\n')}`)
    pause = (await answer(key, run)) > 0 ? 10 : Math.min(pause * 1.6, 400)
    await sleep(pause)
  }
}

/** A run and those below it, a line for each and for each node that is not over. */
async function treeOf(key: Client, run: Run, depth = 0): Promise<string[]> {
  const children = await everyRow(key, `/orchestration-runs?parent_orchestration_run_id=${run.id}`)
  const below = await Promise.all(children.filter(each => !hasEnded(each)).map(each => treeOf(key, each, depth + 1)))
  const open = run.node_executions.filter(({ completed_at }) => completed_at === null)
  const indent = '  '.repeat(depth)
  return [
    `${indent}${run.id} ${run.status}, active: ${run.active_nodes.join(' ')}, ${children.length} below`,
    ...open.map(({ node_id, node_type, status }) => `${indent}  ${node_id} (${node_type}) ${status}`),
    ...below.flat(),
  ]
}

/** Processes items with limited concurrency. */
export async function together<T, R>(items: readonly T[], limit: number, work: (item: T) => Promise<R>): Promise<R[]> {
  const results: R[] = []
  let next = 0
  const lane = async () => {
    for (let index = next++; index < items.length; index = next++) results[index] = await work(items[index])
  }
  await Promise.all(Array.from({ length: limit }, lane))
  return results
}

/** Every row of a list. */
export async function everyRow(key: Client, path: string): Promise<any[]> {
  const rows: any[] = []
  for (;;) {
    const mark = path.includes('?') ? '&' : '?'
    const { data, total } = taken(await key.get(`${path}${mark}limit=100&offset=${rows.length}`), 200)
    rows.push(...data)
    if (data.length === 0 || rows.length >= total) return rows
  }
}

/**
 * What runs of a project did beyond what their records say, in sentences; empty when they did each thing once. `exactly`:
 * no worker was lost, so that no call was repeated. `late`: a worker was frozen, whose calls may come when another has
 * taken its place.
 */
export async function sideEffects(
  key: Client,
  double: ToolDouble,
  { exactly = false, late = false }: { exactly?: boolean; late?: boolean } = {},
): Promise<string[]> {
  const wrong: string[] = []
  const runs: Run[] = await everyRow(key, '/orchestration-runs')
  const tries = new Map<string, Execution>()
  const emitted = new Map<string, string>()
  for (const run of runs) {
    if (!hasEnded(run)) wrong.push(`${run.id} is ${run.status}`)
    const completed = new Set<string>()
    for (const execution of run.node_executions) {
      const { node_id, node_type, attempt, status, idempotency_key } = execution
      const name = `${run.id}:${node_id}:${attempt}`
      if (tries.has(name)) wrong.push(`there are two records of ${name}`)
      tries.set(name, execution)
      if (completed.has(node_id)) wrong.push(`${name} came after an attempt that had completed`)
      if (status === 'completed') completed.add(node_id)
      if (hasEnded(run) && ['running', 'waiting', 'requires_action'].includes(status))
        wrong.push(`${name} is ${status} in a run that has ended`)
      if (node_type === 'tool' && status !== 'skipped' && idempotency_key !== name)
        wrong.push(`the key of ${name} is ${idempotency_key}`)
      const event = node_type === 'emit_event' && status === 'completed' && (execution.output as any)?.event_id
      if (event) emitted.set(event, name)
    }
  }
  const seen = new Map<string, number>()
  for (const call of double.calls) {
    seen.set(call.key, (seen.get(call.key) ?? 0) + 1)
    const execution = tries.get(`${call.run}:${call.node}:${call.attempt}`)
    if (!execution) wrong.push(`a call came under ${call.key}, of which there is no record`)
    else if (
      !late &&
      execution.status === 'completed' &&
      execution.completed_at &&
      call.at > Date.parse(execution.completed_at)
    )
      wrong.push(`a call came under ${call.key} when it was over`)
  }
  for (const key of double.strange) wrong.push(`a call came under the key ${JSON.stringify(key)}`)
  for (const [name, { node_type, status, error }] of tries) {
    if (node_type !== 'tool') continue
    const called = status === 'completed' || error?.code === 'TOOL_HTTP_ERROR'
    if (called && !seen.has(name)) wrong.push(`${name} is ${status} and was never called`)
  }
  if (exactly) for (const [key, count] of seen) if (count > 1) wrong.push(`${count} calls came under ${key}`)
  wrong.push(...childrenOf(runs))

  const events = (await Promise.all(EVENTS.map(name => everyRow(key, `/events?event=${name}`))))
    .flat()
    .map(({ id }) => id)
  const known = new Set(events)
  for (const id of events) if (!emitted.has(id)) wrong.push(`the event ${id} belongs to no node`)
  for (const [id, name] of emitted) if (!known.has(id)) wrong.push(`${name} has emitted nothing`)
  return wrong
}

/** Nested runs that are missing or too many. */
function childrenOf(runs: readonly Run[]): string[] {
  const children = Map.groupBy(runs, run => `${run.parent_orchestration_run_id}:${run.parent_node_id}`)
  return runs.flatMap(run =>
    run.node_executions
      .filter(({ node_type, status }) => ['loop', 'sub_orchestration'].includes(node_type) && status === 'completed')
      .flatMap(({ node_id, node_type, output, label }) => {
        if (label === 'failed') return []
        const expected = node_type === 'loop' ? (output as { results: unknown[] }).results.length : 1
        const made = children.get(`${run.id}:${node_id}`)?.length ?? 0
        return made === expected ? [] : [`${run.id}:${node_id} has ${made} nested runs in place of ${expected}`]
      }),
  )
}
