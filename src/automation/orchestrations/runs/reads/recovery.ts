import { z } from 'zod'
import { entriesOfWork, READ_ENTRIES, WorkEntries } from '#control/audit/work-entries.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { toWireTime } from '#core/base/clock.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql } from '#core/db/sql.ts'
import {
  interruptedAttempt,
  RecoveryAttempt,
  recoveryCall,
  withVisibleProcesses,
} from '#execution/generations/recovery/get-recovery.ts'
import { Interruption } from '#execution/generations/recovery/interruptions.ts'
import { WORKER_EXECUTED } from '../engine/node-execution-store.ts'
import { loadPinnedGraph } from '../engine/pinned-graph.ts'
import { NODE_STATUSES, type RunRow, runKind } from '../model.ts'
import { hasCallEnded, isAbandoned, lastKeyOf } from './present-run.ts'

const node = {
  node_id: z.string().describe('ID of the node'),
  node_attempt: z.int().describe('Attempt number of the node execution, which retries of the node increase'),
}

const Recovery = z
  .object({
    id: z.string().describe('ID of the run'),
    attempts: z
      .array(RecoveryAttempt.extend(node))
      .describe(
        'Attempts at the node executions that workers execute, of the first 1,000, numbered for each. Turns of agent nodes have separate records.',
      ),
    calls: z
      .array(recoveryCall(z.string().describe('ID of the node')))
      .describe('Calls of these node executions; of a node that polls, the last one, which is `repeated` if any was'),
    audit: WorkEntries,
  })
  .meta({ id: 'OrchestrationRunRecovery' })

type Attempt = z.output<typeof Recovery>['attempts'][number]
type Call = z.output<typeof Recovery>['calls'][number]

export const getRunRecovery: Operation = itemOperation(runKind, {
  id: 'getRunRecovery',
  method: 'get',
  path: '/orchestration-runs/{orchestration_run_id}/recovery',
  summary: 'Get the recovery record of a run',
  description:
    'Returns which attempts executed the nodes, how they ended, and which calls were made, repeated or withheld after a crash, without arguments and results.',
  tag: 'Orchestrations',
  action: 'orchestrations:GetRun',
  alsoActions: [READ_ENTRIES],
  answers: { 200: Recovery },
  async run(context) {
    const { services, db, resource, caller } = context
    const executions = await listStarted(db, resource.id)
    const tools = await toolNames(services, db, resource)
    return {
      id: resource.id,
      attempts: withVisibleProcesses(caller, executions.flatMap(attemptsOf)),
      calls: executions.flatMap(execution => callOf(execution, tools.get(execution.node_id) ?? null) ?? []),
      audit: await entriesOfWork(context),
    }
  },
})

const MAX_EXECUTIONS = 1000

const Execution = z.object({
  run_id: z.string(),
  node_id: z.string(),
  node_type: z.string(),
  attempt: z.int(),
  polls: z.int(),
  deliveries: z.int(),
  status: z.enum(NODE_STATUSES),
  error_code: z.string().nullable(),
  /** By a guardrail. */
  refused: z.boolean(),
  lease_expires_at: z.string().nullable(),
  instance_id: z.string().nullable(),
  started_at: z.string().nullable(),
  completed_at: z.string().nullable(),
  interruptions: z.array(Interruption),
})
type Execution = z.output<typeof Execution>

/**
 * Lists the first node executions of a run that workers have started, with their interruptions. By
 * orchestration_node_executions_run and the primary key of node_interruptions.
 */
const listStarted = (db: Queryable, runId: string): Promise<readonly Execution[]> =>
  db.any(sql.type(Execution)`
    select t.run_id, t.node_id, t.node_type, t.attempt, t.polls, t.deliveries, t.status, t.error ->> 'code' as error_code,
      t.status = 'completed' and not t.through as refused,
      t.leased_until as lease_expires_at, t.started_at, t.completed_at, (
        select h.instance_id from worker_heartbeats h where h.holder = split_part(t.holder, ':', 1) limit 1) as instance_id,
      coalesce((
        select json_agg(to_jsonb(i) - 'node_execution_id' order by i.number) from node_interruptions i
        where i.node_execution_id = t.id), '[]') as interruptions
    from orchestration_node_executions t
    where t.run_id = ${runId} and t.node_type in ${WORKER_EXECUTED} and t.started_at is not null and t.status <> 'skipped'
    order by t.created_at, t.id limit ${MAX_EXECUTIONS}`)

const toolRow = sql.type(z.object({ id: z.string(), name: z.string() }))

/** Returns the names of the tools of the project that nodes call, by node. */
async function toolNames(services: Services, db: Queryable, run: RunRow): Promise<ReadonlyMap<string, string>> {
  const pinned = await loadPinnedGraph(services, db, run)
  const nodes = (pinned?.graph.nodes ?? []).flatMap(({ id, tool_id }) => (tool_id ? [{ id, tool_id }] : []))
  if (nodes.length === 0) return new Map()
  const ids = nodes.map(({ tool_id }) => tool_id)
  const tools = await db.any(toolRow`
    select id, name from tools where id = any(${sql.array(ids, 'text')}) and project_id = ${run.project_id}`)
  const names = new Map(tools.map(({ id, name }) => [id, name]))
  return new Map(nodes.flatMap(({ id, tool_id }) => (names.has(tool_id) ? [[id, names.get(tool_id) as string]] : [])))
}

/** Whether the work was continued after its last interruption, or had none. */
const isContinued = ({ interruptions }: Execution): boolean => interruptions.at(-1)?.continued_at !== null

function attemptsOf(execution: Execution): Attempt[] {
  const { node_id, attempt: node_attempt, interruptions, started_at } = execution
  const startOf = (index: number) =>
    index === 0
      ? { at: started_at, by: null }
      : { at: interruptions[index - 1].continued_at, by: interruptions[index - 1].continued_by }
  const attempts = interruptions.map((each, index) => interruptedAttempt(each, startOf(index)))
  const { at, by } = startOf(interruptions.length)
  if (isContinued(execution))
    attempts.push({
      number: attempts.length + 1,
      instance_id: by ?? execution.instance_id,
      started_at: toWireTime(at),
      lease_expires_at: execution.status === 'running' ? toWireTime(execution.lease_expires_at) : null,
      ended_at: toWireTime(execution.completed_at),
      ended_by: endOf(execution),
    })
  return attempts.map(attempt => ({ node_id, node_attempt, ...attempt }))
}

/** Returns how the last attempt ended. An execution that waits for its next poll or an approval has no worker. */
function endOf({ status, error_code, lease_expires_at }: Execution): Attempt['ended_by'] {
  if (isAbandoned(error_code)) return 'lease_lost'
  if (status === 'cancelled') return 'cancelled'
  if (status === 'completed' || status === 'failed') return 'settled'
  return lease_expires_at === null ? 'released' : null
}

/** Presents the call of a node execution; null if it waits for its call, or a guardrail refused it. */
function callOf(execution: Execution, tool: string | null): Call | null {
  const { node_id, status, error_code, interruptions, started_at, completed_at } = execution
  if (status === 'requires_action' || execution.refused) return null
  const isKnown = isContinued(execution) && hasCallEnded(execution, error_code)
  const isInterrupted = interruptions.length > 0
  return {
    step: node_id,
    tool_call_id: null,
    tool,
    attempt: interruptions.length + (isContinued(execution) ? 1 : 0),
    state: isAbandoned(error_code) ? 'withheld' : !isKnown ? 'unknown' : isInterrupted ? 'repeated' : 'done',
    idempotency_key: lastKeyOf(execution, isKnown),
    started_at: toWireTime(isInterrupted ? (interruptions.at(-1)?.continued_at ?? null) : started_at),
    ended_at: toWireTime(completed_at),
  }
}
