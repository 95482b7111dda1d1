import { z } from 'zod'
import { entriesOfWork, READ_ENTRIES, WorkEntries } from '#control/audit/work-entries.ts'
import { passesAdminGate } from '#core/api/access.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { toWireTime } from '#core/base/clock.ts'
import { holderOf } from '#core/base/holder.ts'
import type { Services } from '#core/base/services.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { findOpenStep } from '../journal/store.ts'
import { type GenerationRow, generationKind, type JournalStepRow, type ToolCallOutcome } from '../model.ts'
import { readSteps } from '../traces/file.ts'
import { findAttempts, type Interruption } from './interruptions.ts'

const time = z.iso.datetime().nullable()

/** An attempt at work, as responses have it. */
export const RecoveryAttempt = z.object({
  number: z.int().describe('Number of the attempt, from 1'),
  instance_id: z
    .string()
    .nullable()
    .describe(
      'Process of the attempt: its name for an admin of the deployment, otherwise its random ID, with which the name ends. Null if unknown: it is recorded while the attempt runs, and with an interruption.',
    ),
  started_at: time.describe('Start of the attempt. Null if unknown.'),
  lease_expires_at: time.describe('End of the lease of an attempt that runs or whose lease was lost. Null otherwise.'),
  ended_at: time.describe(
    'End of the attempt; with `cancelled`, of the turn or node execution. Null while it runs, or if unknown.',
  ),
  ended_by: z
    .enum(['settled', 'released', 'lease_lost', 'cancelled'])
    .nullable()
    .describe(
      'How the attempt ended: `settled` - with its work; `released` - requeued for another attempt; `lease_lost` - taken over from a lost or frozen process; `cancelled` - the last one of a cancelled turn or node execution, which it may have left before. Null while it runs.',
    ),
})
export type RecoveryAttempt = z.output<typeof RecoveryAttempt>

/** A call, as responses have it. */
export const recoveryCall = (step: z.ZodType) =>
  z.object({
    step,
    tool_call_id: z.string().nullable().describe('ID of the tool call, from the model. Null for calls of runs.'),
    tool: z.string().nullable().describe('Name of the tool. Null without a tool, or if it was deleted.'),
    attempt: z.int().nullable().describe('Attempt that made the call last. Null if unknown.'),
    state: z
      .enum(['done', 'repeated', 'withheld', 'unknown'])
      .describe(
        'State of the call: `done` - made once, its outcome is known; `repeated` - interrupted, and made again with the same idempotency key; `withheld` - interrupted, and not made again; `unknown` - started, its outcome is not known',
      ),
    idempotency_key: z.string().describe('Idempotency key that the call sends, the same when it is repeated'),
    started_at: time.describe('Last start of the call. Null if unknown.'),
    ended_at: time.describe('End of the call. Null if unknown.'),
  })

const Recovery = z
  .object({
    id: z.string().describe('ID of the generation'),
    attempts: z
      .array(RecoveryAttempt)
      .describe(
        'Attempts at the turn, oldest first, the last 1,000. A turn that waits for its model or for tool outputs is released, and continues with another attempt.',
      ),
    calls: z
      .array(recoveryCall(z.int().describe('Number of the step, from 1')))
      .nullable()
      .describe('Tool calls that the platform made or started. Null if the content is erased or not stored.'),
    audit: WorkEntries,
  })
  .meta({ id: 'GenerationRecovery' })

type Attempts = z.output<typeof Recovery>['attempts']
type Call = z.output<NonNullable<ReturnType<typeof recoveryCall>>>

/** Most attempts of a response. */
const MAX_ATTEMPTS = 1000

export const getGenerationRecovery: Operation = itemOperation(generationKind, {
  id: 'getGenerationRecovery',
  method: 'get',
  path: '/generations/{generation_id}/recovery',
  summary: 'Get the recovery record of a generation',
  description:
    'Returns which attempts executed the turn, how they ended, and which tool calls were made, repeated or withheld after a crash, without arguments and results.',
  tag: 'Generations',
  action: 'generations:GetGeneration',
  alsoActions: [READ_ENTRIES],
  answers: { 200: Recovery },
  raises: ['FILE_STORAGE_MISCONFIGURED'],
  async run(context) {
    const { services, resource, db, caller } = context
    const { GENERATION_LEASE_SECONDS } = services.config
    const { interruptions, live } = await findAttempts(db, resource, GENERATION_LEASE_SECONDS)
    const attempts = attemptsOf(resource, interruptions, live)
    return {
      id: resource.id,
      attempts: withVisibleProcesses(caller, attempts.slice(-MAX_ATTEMPTS)),
      calls: await callsOf(services, db, resource, attempts),
      audit: await entriesOfWork(context),
    }
  },
})

/** Action that names of processes require, which contain names of hosts. */
const READ_PROCESSES = 'system:GetSystemStatus'

/** Returns attempts with their processes as the caller may see them: by name, or by random ID. */
export const withVisibleProcesses = <A extends RecoveryAttempt>(caller: Caller, attempts: A[]): A[] =>
  passesAdminGate(caller, READ_PROCESSES, null)
    ? attempts
    : attempts.map(each => ({ ...each, instance_id: each.instance_id && holderOf(each.instance_id) }))

/** Presents an interrupted attempt. `started`: its start and process, where known. */
export const interruptedAttempt = (
  { number, instance_id, lease_expires_at, ended_at, ended_by }: Omit<Interruption, 'continued_at' | 'continued_by'>,
  started: { at: string | null; by: string | null },
): RecoveryAttempt => ({
  number,
  instance_id: instance_id ?? started.by,
  started_at: toWireTime(started.at),
  lease_expires_at: toWireTime(lease_expires_at),
  ended_at: toWireTime(ended_at),
  ended_by,
})

function attemptsOf(
  turn: GenerationRow,
  interruptions: readonly Interruption[],
  live: { instance_id: string | null; lease_expires_at: string | null } | null,
): Attempts {
  const byNumber = new Map(interruptions.map(each => [each.number, each]))
  return Array.from({ length: turn.attempt }, (_, index) => {
    const number = index + 1
    const before = byNumber.get(index)
    const started = {
      at: number === 1 ? turn.started_at : (before?.continued_at ?? null),
      by: before?.continued_by ?? null,
    }
    const interruption = byNumber.get(number)
    if (interruption) return interruptedAttempt(interruption, started)
    const unknown = {
      number,
      instance_id: started.by,
      started_at: toWireTime(started.at),
      lease_expires_at: null,
      ended_at: null,
    }
    if (number < turn.attempt || turn.handed_back) return { ...unknown, ended_by: 'released' as const }
    return { ...unknown, ...lastOf(turn, live, started.by) }
  })
}

/** Returns how the last attempt at a turn ended, or who makes it. */
function lastOf(
  { status, stop_reason, completed_at, last_activity_at }: GenerationRow,
  live: { instance_id: string | null; lease_expires_at: string | null } | null,
  instance_id: string | null,
): Omit<RecoveryAttempt, 'number' | 'started_at'> {
  const lease_expires_at = null
  switch (status) {
    case 'completed':
    case 'failed':
      return {
        instance_id,
        lease_expires_at,
        ended_at: completed_at,
        ended_by: stop_reason === 'cancelled' ? 'cancelled' : 'settled',
      }
    case 'requires_action':
      return { instance_id, lease_expires_at, ended_at: last_activity_at, ended_by: 'released' }
    default:
      return {
        instance_id: live?.instance_id ?? instance_id,
        lease_expires_at: toWireTime(live?.lease_expires_at ?? null),
        ended_at: null,
        ended_by: null,
      }
  }
}

/** Returns the calls that the platform made or started: settled ones, and calls of the step in progress. */
async function callsOf(
  services: Services,
  db: Queryable,
  turn: GenerationRow,
  attempts: Attempts,
): Promise<Call[] | null> {
  if (turn.content_redacted_at !== null || turn.content_mode === 'none') return null
  const steps = await readSteps(services, turn)
  const calls = steps.flatMap(({ n, tool_results }) =>
    tool_results.flatMap(outcome => presentCall(turn, n, outcome, outcome, attempts) ?? []),
  )
  const open = await findOpenStep(db, services, turn)
  if (!open || steps.some(({ n }) => n === open.step.n)) return calls
  for (const [position, { id: tool_call_id, tool_name }] of open.step.tool_calls.entries()) {
    const outcome = open.outcomes.get(position) ?? (open.started.has(position) ? null : undefined)
    const call = outcome !== undefined && presentCall(turn, open.step.n, { tool_call_id, tool_name }, outcome, attempts)
    if (call) calls.push(call)
  }
  return calls
}

/** Presents a call; null if the platform did not make it. `outcome`: null for a call that has only started. */
function presentCall(
  { id }: GenerationRow,
  step: number,
  { tool_call_id, tool_name }: Pick<JournalStepRow['tool_results'][number], 'tool_call_id' | 'tool_name'>,
  outcome: ToolCallOutcome | null,
  attempts: Attempts,
): Call | null {
  const isUnknown = outcome === null || (outcome.error?.meta?.reason === 'outcome_unknown' && !outcome.recovery)
  const { started_at = null, completed_at = null, recovery } = outcome ?? {}
  if (!isUnknown && !recovery && started_at === null) return null
  return {
    step,
    tool_call_id,
    tool: tool_name,
    attempt: started_at === null ? null : attemptAt(attempts, started_at),
    state: isUnknown ? 'unknown' : (recovery ?? 'done'),
    idempotency_key: `${id}:${tool_call_id}`,
    started_at,
    ended_at: completed_at,
  }
}

/** Returns the number of the attempt that ran at a time; null if it is not known which one. */
function attemptAt(attempts: Attempts, at: string): number | null {
  const last = attempts.findLastIndex(({ started_at }) => started_at !== null && started_at <= at)
  return last >= 0 && attempts[last + 1]?.started_at !== null ? attempts[last].number : null
}
