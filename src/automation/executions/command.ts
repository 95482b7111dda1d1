import { type Problem, raise, raiseInvalid } from '../../core/api/errors.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Tx } from '../../core/db/writer.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { lockUnpaused } from '../../identity/projects/pause.ts'
import { requireNotClosed } from '../cases/change.ts'
import { addEvidence, hashInputEvidence } from '../cases/evidence.ts'
import type { EvidenceInput } from '../cases/model.ts'
import { actorOf, byCaller, type TimelineEvent } from '../cases/timeline.ts'
import type { PlaybookStep } from '../playbooks/definition.ts'
import { playbookKind, playbookVersions } from '../playbooks/model.ts'
import { cancelRun, completeDrivenNode, pauseRun, resumeRun } from '../runs/commands/command.ts'
import { retryRun } from '../runs/commands/retry.ts'
import { runKind } from '../runs/model.ts'
import {
  type ExecutionRow,
  executionConflict,
  executionKind,
  isExecutionTerminal,
  NOT_BEGUN,
  type PlaybookStepRow,
} from './model.ts'
import { stepOutcomeOf } from './outcome.ts'
import { type LockedExecution, lockExecutionForWrite } from './run-driver.ts'
import { attachToCase, inputSchemaProblems } from './start.ts'
import { capturedNames, writeExecution } from './store.ts'

/** Commands that callers give an execution. Each holds its case and the execution before the run that drives it. */

type Commanding = Pick<Context, 'tx' | 'services' | 'caller' | 'allowed'>

/** An execution for a command of the caller. Raises RESOURCE_NOT_FOUND. */
async function opened({ tx, caller }: Commanding, row: ExecutionRow): Promise<LockedExecution> {
  const held = (await lockExecutionForWrite(tx, row)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: row.id } })
  held.by = byCaller(caller)
  return held
}

/** Raises RESOURCE_NOT_FOUND for a key that the playbook does not have. */
function stepIn(held: LockedExecution, key: string): { record: PlaybookStepRow; step: PlaybookStep } {
  return (
    held.step(key) ??
    raise('RESOURCE_NOT_FOUND', {
      message: `The execution ${held.row.id} has no step ${key}`,
      meta: { id: held.row.id, step_key: key },
    })
  )
}

/** A manual step that waits. Raises PLAYBOOK_EXECUTION_CONFLICT for any other. */
function waitingStep(held: LockedExecution, key: string): { record: PlaybookStepRow; step: PlaybookStep } {
  const found = stepIn(held, key)
  const { record } = found
  if (isExecutionTerminal(held.row) || record.status !== 'waiting' || record.type !== 'manual')
    executionConflict(held.row, 'The step does not wait for anybody', record)
  return found
}

export type StepCompletion = {
  result: Record<string, unknown>
  note: string | null
  evidence: readonly EvidenceInput[]
}

/**
 * Completes the manual step that an execution waits for: of two that come at once one is taken.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, VALIDATION_FAILED, FILE_NOT_FOUND, RESOURCE_NOT_FOUND, RunFirst
 */
export async function completeStep(
  context: Commanding,
  row: ExecutionRow,
  key: string,
  { result, note, evidence }: StepCompletion,
): Promise<LockedExecution> {
  const { tx, services, caller } = context
  const held = await opened(context, row)
  const { step } = waitingStep(held, key)
  const problems = [
    ...(await inputSchemaProblems(services, row.project_id, step.result_schema ?? null, result, 'result')),
    ...(await missingEvidence(tx, held, step, evidence)),
  ]
  if (problems.length > 0) raiseInvalid(problems)
  const given = await hashInputEvidence(context, row.project_id, evidence)
  const doer = actorOf(caller)
  const pieces = given.map(piece => ({ ...piece, playbook_execution_id: row.id, step_key: key }))
  const { happenings } = await addEvidence(tx, held.case, doer, pieces)
  held.told(happenings)
  held.act = { doer, skip: false, note }
  await answer(context, held, key, result)
  return held
}

/** What a step requires and neither is given now nor was captured for it before. */
async function missingEvidence(
  tx: Tx,
  { row }: LockedExecution,
  { key, required_evidence }: PlaybookStep,
  given: readonly EvidenceInput[],
): Promise<Problem[]> {
  if (!required_evidence?.length) return []
  const there = new Set(given.map(({ kind, name }) => `${kind} ${name}`))
  if (required_evidence.every(({ kind, name }) => there.has(`${kind} ${name}`))) return []
  for (const { kind, name } of await capturedNames(tx, row.id, key)) there.add(`${kind} ${name}`)
  return required_evidence.flatMap(({ kind, name }) =>
    there.has(`${kind} ${name}`)
      ? []
      : [{ code: 'REQUIRED', path: 'evidence', message: `must have the ${kind} ${name}` }],
  )
}

/**
 * Skips the manual step that an execution waits for, where its playbook lets people.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, RESOURCE_NOT_FOUND
 */
export async function skipStep(
  context: Commanding,
  row: ExecutionRow,
  key: string,
  reason: string,
): Promise<LockedExecution> {
  const { caller } = context
  const held = await opened(context, row)
  const { record, step } = waitingStep(held, key)
  if (!step.skippable) executionConflict(held.row, 'The step cannot be skipped', record)
  held.act = { doer: actorOf(caller), skip: true, note: reason }
  await answer(context, held, key, null)
  return held
}

const answer = (
  { tx, services }: Pick<Commanding, 'tx' | 'services'>,
  held: LockedExecution,
  node_id: string,
  artifact: unknown,
) => completeDrivenNode(tx, services, held.row.orchestration_run_id, { node_id, artifact, driven: held })

/**
 * Says who has a step that waits.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, RESOURCE_NOT_FOUND
 */
export async function assignStep(
  context: Commanding,
  row: ExecutionRow,
  key: string,
  assignee: string | null,
): Promise<LockedExecution> {
  const { services } = context
  const held = await opened(context, row)
  const { record } = waitingStep(held, key)
  const from = record.assignee
  if (from === assignee) return held
  record.assignee = assignee
  const data = { changes: { assignee: { from, to: assignee } } }
  await held.change(record, { kind: 'updated', data }, services.clock.now().toISOString())
  return held
}

/**
 * Ends an execution at once, with everything below it.
 * @throws PLAYBOOK_EXECUTION_CONFLICT
 */
export async function cancelExecution(
  context: Commanding,
  row: ExecutionRow,
  reason: string | null,
): Promise<LockedExecution> {
  const { tx, services } = context
  const held = await opened(context, row)
  if (isExecutionTerminal(held.row)) executionConflict(held.row, 'The execution is over')
  held.reason = reason
  await cancelRun(tx, services, held.row.orchestration_run_id, held)
  return held
}

/**
 * Starts a failed execution anew from the step that failed, in the version that it follows, as the caller: what earlier
 * steps came to is kept.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, CASE_STATE_CONFLICT, PROJECT_PAUSED
 */
export async function retryExecution(
  context: Commanding,
  row: ExecutionRow,
  tool_context: Record<string, string> | null,
): Promise<LockedExecution> {
  const { tx, services, caller } = context
  await lockUnpaused(tx, row.project_id)
  const held = await opened(context, row)
  const { row: stored, case: kase } = held
  if (stored.status !== 'failed') executionConflict(stored, 'Only an execution that failed can be retried')
  requireNotClosed(kase)
  const active = kase.active_execution_id === null ? null : await executionKind.find(tx, kase.active_execution_id)
  if (active) executionConflict(active, 'Another execution is under way on the case')
  const playbook = await playbookKind.reference(tx, stored.playbook_id, stored.project_id)
  const run = playbook && (await runKind.find(tx, stored.orchestration_run_id))
  if (!run) return executionConflict(stored, 'The playbook was deleted')
  const authority = principalRecord(caller)
  const again = await retryRun(tx, services, run, caller, {
    from_node_id: null,
    expires_in: null,
    authority,
    definition: await playbookVersions.definition(tx, playbook, stored.playbook_version),
    tool_context,
    guardrail_context: null,
  })
  Object.assign(stored, {
    status: 'queued',
    error: null,
    completed_at: null,
    waiting_on: null,
    orchestration_run_id: again.id,
    previous_orchestration_run_ids: [...stored.previous_orchestration_run_ids, run.id],
  } satisfies Partial<ExecutionRow>)
  // What has failed and was gone on from stays as it is.
  const left = stored.definition.steps
    .filter(step => stepOutcomeOf(step, again.outcomes) === null)
    .map(({ key }) => key)
  const steps = held.steps.filter(
    ({ key, status }) => (status === 'failed' || status === 'cancelled') && left.includes(key),
  )
  for (const step of steps) Object.assign(step, NOT_BEGUN, { attempts_before: step.attempt })
  await writeExecution(tx, stored, steps)
  held.case = await attachToCase(tx, kase, stored, byCaller(caller), { retried: true })
  return held
}

/**
 * Pauses an execution with everything below it: what is under way goes on to its end, nothing else begins. People can
 * complete their step meanwhile. The first reason stays.
 * @throws PLAYBOOK_EXECUTION_CONFLICT
 */
export async function pauseExecution(
  context: Commanding,
  row: ExecutionRow,
  reason: string | null,
): Promise<LockedExecution> {
  const { tx, services } = context
  const held = await opened(context, row)
  if (isExecutionTerminal(held.row)) executionConflict(held.row, 'The execution is over')
  if (held.row.pause_requested_at !== null) return held
  held.told([pausedTold(held, true, reason)])
  await pauseRun(tx, services, held.row.orchestration_run_id, reason, held)
  return held
}

/**
 * Lifts the pause of an execution, but not those of runs below it.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, PROJECT_PAUSED
 */
export async function resumeExecution(context: Commanding, row: ExecutionRow): Promise<LockedExecution> {
  const { tx, services } = context
  await lockUnpaused(tx, row.project_id)
  const held = await opened(context, row)
  if (held.row.pause_requested_at === null) executionConflict(held.row, 'The execution is not paused')
  held.told([pausedTold(held, false, null)])
  await resumeRun(tx, services, held.row.orchestration_run_id, held)
  return held
}

const pausedTold = ({ row }: LockedExecution, to: boolean, reason: string | null): TimelineEvent => ({
  kind: 'updated',
  data: { changes: { paused: { from: !to, to } }, ...(reason === null ? {} : { reason }) },
  playbook_execution_id: row.id,
})

/**
 * Ends the wait of an execution for an event, unless it has ended since.
 * @param wait.since when the wait began that the event was judged for
 */
export async function completeEventWait(
  tx: Tx,
  services: Services,
  { id, case_id, since }: { id: string; case_id: string; since: string },
  envelope: string,
): Promise<void> {
  const held = await lockExecutionForWrite(tx, { id, case_id })
  if (!held?.row.event_wait || held.row.event_wait.since !== since) return
  await answer({ tx, services }, held, held.row.event_wait.step_key, JSON.parse(envelope))
}

/** Marks the steps of an execution that have become overdue, and tells of each once. */
export async function markOverdue(tx: Tx, services: Services, placed: { id: string; case_id: string }): Promise<void> {
  const held = await lockExecutionForWrite(tx, placed)
  if (held) await held.overdue(services.clock.now())
}
