import { z } from 'zod'
import type { Graph } from '#automation/orchestrations/definition/graph.ts'
import { raise } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { idStatement, type Queryable, sql } from '#core/db/sql.ts'
import { isUnanswered, statusOf } from '#execution/tools/unanswered.ts'
import { loadPinnedGraph } from '../engine/pinned-graph.ts'
import { isRunTerminal, type NodeOutcome, RUN_STATUSES, type RunRow, runKind } from '../model.ts'

/**
 * Approvals and answers of people that a retry keeps. One answer releases the calls after it once: if a call that may have
 * been made would be made again, the answer is discarded and requested again. The calls count in all runs that
 * kept the answer: the run, the runs that it retries, and their other retries.
 */

/** Types of nodes that have no effect outside the run. */
const PURE_TYPES: readonly string[] = ['transform', 'condition', 'knowledge', 'delay', 'human', 'approval', 'webhook']

/** Whether an outcome is the answer of a person that released the nodes after it; a rejection released no call. */
const isRelease = (graph: Graph, id: string, { label }: NodeOutcome): boolean => {
  const type = graph.node(id)?.type
  return type === 'human' || (type === 'approval' && label === 'approved')
}

/** Returns a node and all later nodes. */
export function withSuccessors(graph: Graph, start: string): ReadonlySet<string> {
  const found = new Set([start])
  for (const id of found) for (const { to } of graph.outgoing.get(id) ?? []) found.add(to)
  return found
}

const Member = z.object({
  id: z.string(),
  retry_of_run_id: z.string().nullable(),
  parent_id: z.string().nullable(),
  parent_node_id: z.string().nullable(),
  status: z.enum(RUN_STATUSES),
  outcome_ids: z.array(z.string()),
})
type Member = z.output<typeof Member>
const memberRow = sql.type(Member)

const Execution = z.object({
  run_id: z.string(),
  node_id: z.string(),
  node_type: z.string(),
  status: z.string(),
  through: z.boolean(),
  deliveries: z.int(),
  approval_id: z.string().nullable(),
  is_approved: z.boolean(),
  generation_id: z.string().nullable(),
  step_count: z.int().nullable(),
  code: z.string().nullable(),
  tool_status: z.int().nullable(),
})
type Execution = z.output<typeof Execution>
const executionRow = sql.type(Execution)

/** Runs of a chain of retries, with the executions of their nodes. */
type Family = { members: ReadonlyMap<string, Member>; executions: readonly Execution[] }

/**
 * Locks the first run of the chain of retries, so that concurrent retries see each other, and reads its family. By
 * orchestration_runs_retry, the primary key and orchestration_node_executions_run.
 */
async function lockFamily(db: Queryable, run: RunRow): Promise<Family> {
  const first = await db.oneFirst(idStatement`
    with recursive earlier as (
      select id, retry_of_run_id, 0 as depth from orchestration_runs where id = ${run.id}
      union all
      select r.id, r.retry_of_run_id, e.depth + 1 from earlier e join orchestration_runs r on r.id = e.retry_of_run_id)
    select id from earlier order by depth desc limit 1`)
  await runKind.lock(db, first)
  const members = await db.any(memberRow`
    with recursive family as (
      select id from orchestration_runs where id = ${first}
      union select r.id from family f join orchestration_runs r on r.retry_of_run_id = f.id)
    select r.id, r.retry_of_run_id, r.parent_id, r.parent_node_id, r.status,
      array(select json_object_keys(r.outcomes)) as outcome_ids
    from family f join orchestration_runs r on r.id = f.id`)
  const executions = await db.any(executionRow`
    select e.run_id, e.node_id, e.node_type, e.status, e.through, e.deliveries, e.approval_id, e.generation_id,
      coalesce(e.progress ->> 'approved' = 'true', false) as is_approved, g.step_count, e.error ->> 'code' as code,
      (e.error #>> '{meta,tool_status_code}')::integer as tool_status
    from orchestration_node_executions e left join generations g on g.id = e.generation_id
    where e.run_id = any(${sql.array(
      members.map(({ id }) => id),
      'text',
    )}) and e.status <> 'skipped'`)
  return { members: new Map(members.map(member => [member.id, member])), executions }
}

/**
 * Whether an execution may have had an effect. A failed call had none if it was refused before it was made, or if its
 * receiver answered with an error; without an answer (a timeout, a lost worker) it may have had one.
 */
function mayHaveEffect({ node_type, status, through, ...execution }: Execution): boolean {
  if (PURE_TYPES.includes(node_type)) return false
  if (status === 'completed') return through || node_type !== 'tool'
  const { deliveries, approval_id, is_approved, generation_id, step_count } = execution
  const isWaiting = approval_id !== null && !is_approved
  if (isWaiting || (node_type === 'tool' && deliveries === 0)) return false
  if (node_type === 'agent' && generation_id === null) return false
  if (status !== 'failed') return true
  if (node_type === 'agent') return step_count !== 0 || statusOf(execution.code) === 500
  return node_type !== 'tool' || isUnanswered(execution.code, execution.tool_status)
}

/** Returns the nodes that the runs which kept an answer may have executed with an effect; null if any node might yet be. */
function executedUnder({ members, executions }: Family, run: RunRow, answer: string): ReadonlySet<string> | null {
  const isAsked = (id: string) => executions.some(({ run_id, node_id }) => run_id === id && node_id === answer)
  const originOf = (id: string): string => {
    const earlier = members.get(id)?.retry_of_run_id
    return isAsked(id) || earlier == null || !members.has(earlier) ? id : originOf(earlier)
  }
  const origin = originOf(run.id)
  const keeping = [...members.values()].filter(
    ({ id, outcome_ids }) => outcome_ids.includes(answer) && originOf(id) === origin,
  )
  if (keeping.some(member => !isRunTerminal(member))) return null
  return effectsOf(executions, new Set(keeping.map(({ id }) => id)))
}

const effectsOf = (executions: readonly Execution[], runs: ReadonlySet<string>): ReadonlySet<string> =>
  new Set(executions.filter(each => runs.has(each.run_id) && mayHaveEffect(each)).map(({ node_id }) => node_id))

const isPure = (graph: Graph, id: string): boolean => PURE_TYPES.includes(graph.node(id)?.type ?? '')

/**
 * Removes from the kept nodes the answers that would release a call again, and the nodes between such an answer and the call.
 * Locks the first run of the chain of retries, if there is an answer.
 * @throws ORCHESTRATION_RUN_NOT_RETRYABLE if a run above requested the answer, which a retry of the nested run cannot repeat
 */
export async function keepUnusedAnswers(
  db: Queryable,
  services: Services,
  graph: Graph,
  run: RunRow,
  kept: Set<string>,
): Promise<void> {
  const answers = () =>
    [...kept].filter(id => Object.hasOwn(run.outcomes, id) && isRelease(graph, id, run.outcomes[id]))
  if (answers().length === 0 && run.parent_id === null && run.retry_of_run_id === null) return
  const family = await lockFamily(db, run)
  let used: string | undefined
  do {
    used = undefined
    for (const answer of answers()) {
      const released = withSuccessors(graph, answer)
      const executed = executedUnder(family, run, answer)
      const repeated = [...released].filter(
        id => !kept.has(id) && !isPure(graph, id) && (executed === null || executed.has(id)),
      )
      if (repeated.length === 0) continue
      used = answer
      kept.delete(answer)
      for (const id of released) if (repeated.some(each => withSuccessors(graph, id).has(each))) kept.delete(id)
    }
  } while (used !== undefined)
  await requireNoAnswerAbove(db, services, graph, { run, family, kept })
}

/** Raises ORCHESTRATION_RUN_NOT_RETRYABLE if an answer in a run above a nested run released a call that would be repeated. */
async function requireNoAnswerAbove(
  db: Queryable,
  services: Services,
  graph: Graph,
  { run, family, kept }: { run: RunRow; family: Family; kept: ReadonlySet<string> },
): Promise<void> {
  const { members, executions } = family
  let nested: Pick<Member, 'parent_id' | 'parent_node_id'> | undefined = [...members.values()].find(
    ({ parent_id }) => parent_id !== null,
  )
  if (!nested) return
  const isLive = [...members.values()].some(member => !isRunTerminal(member))
  const executed = effectsOf(executions, new Set(members.keys()))
  if (!graph.nodes.some(({ id }) => !kept.has(id) && !isPure(graph, id) && (isLive || executed.has(id)))) return
  while (nested?.parent_id) {
    const above: RunRow | null = await runKind.find(db, nested.parent_id)
    const pinned = above && (await loadPinnedGraph(services, db, above))
    const node = nested.parent_node_id as string
    if (!above || !pinned) return
    for (const [id, outcome] of Object.entries(above.outcomes))
      if (isRelease(pinned.graph, id, outcome) && withSuccessors(pinned.graph, id).has(node))
        raise('ORCHESTRATION_RUN_NOT_RETRYABLE', {
          message: `Run ${run.id} would repeat a call that node ${id} of run ${above.id} released; retry run ${above.id}`,
          meta: { status: run.status, orchestration_run_id: above.id, node_id: id },
        })
    nested = above
  }
}
