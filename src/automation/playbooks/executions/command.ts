import { requireNotClosed } from '#automation/cases/change.ts'
import { addEvidence, hashInputEvidence } from '#automation/cases/evidence.ts'
import type { EvidenceInput } from '#automation/cases/model.ts'
import { actorOf, byCaller, type TimelineEvent } from '#automation/cases/timeline.ts'
import { cancelRun, completeDrivenNode, pauseRun, resumeRun } from '#automation/orchestrations/runs/commands/command.ts'
import { retryRun } from '#automation/orchestrations/runs/commands/retry.ts'
import { runKind } from '#automation/orchestrations/runs/model.ts'
import type { Context } from '#core/api/operation.ts'
import { type Problem, raise, raiseInvalid } from '#core/base/errors.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Tx } from '#core/writes/writer.ts'
import { lockUnpaused } from '#identity/projects/pause.ts'
import type { PlaybookStep } from '../definition/definition.ts'
import { playbookKind } from '../definition/model.ts'
import { playbookVersions } from '../definition/versions.ts'
import {
  type ExecutionRow,
  executionKind,
  isExecutionTerminal,
  PENDING_STEP,
  type PlaybookStepRow,
  raiseExecutionConflict,
} from './model.ts'
import { stepOutcomeOf } from './outcome.ts'
import { type LockedExecution, lockExecutionForWrite } from './run-driver.ts'
import { attachToCase, inputSchemaProblems } from './start.ts'
import { listCapturedEvidence, writeExecution } from './store.ts'

// Commands on executions. Each locks the case and the execution before the run that drives it.

type CommandContext = Pick<Context, 'tx' | 'services' | 'caller' | 'allowed'>

/** Locks an execution for a command of the caller. @throws RESOURCE_NOT_FOUND */
async function lockForCommand({ tx, services, caller }: CommandContext, row: ExecutionRow): Promise<LockedExecution> {
  const execution =
    (await lockExecutionForWrite(tx, services, row)) ?? raise('RESOURCE_NOT_FOUND', { meta: { id: row.id } })
  execution.actAs(byCaller(caller))
  return execution
}

/** @throws RESOURCE_NOT_FOUND if the playbook has no step with the key */
function requireStep(execution: LockedExecution, key: string): { record: PlaybookStepRow; step: PlaybookStep } {
  return (
    execution.step(key) ??
    raise('RESOURCE_NOT_FOUND', {
      message: `Execution ${execution.row.id} has no step ${key}`,
      meta: { id: execution.row.id, step_key: key },
    })
  )
}

/** Returns a waiting manual step. @throws PLAYBOOK_EXECUTION_CONFLICT for any other step */
function requireWaitingStep(execution: LockedExecution, key: string): { record: PlaybookStepRow; step: PlaybookStep } {
  const found = requireStep(execution, key)
  const { record } = found
  if (isExecutionTerminal(execution.row) || record.status !== 'waiting' || record.type !== 'manual')
    raiseExecutionConflict(execution.row, `Step ${key} is not a waiting manual step`, record)
  return found
}

export type StepCompletion = {
  result: Record<string, unknown>
  note: string | null
  evidence: readonly EvidenceInput[]
}

/**
 * Completes the manual step that an execution waits for. The first of several concurrent requests wins.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, VALIDATION_FAILED, FILE_NOT_FOUND, RESOURCE_NOT_FOUND
 */
export async function completeStep(
  context: CommandContext,
  row: ExecutionRow,
  key: string,
  { result, note, evidence }: StepCompletion,
): Promise<LockedExecution> {
  const { tx, services, caller } = context
  const execution = await lockForCommand(context, row)
  const { step } = requireWaitingStep(execution, key)
  const problems = [
    ...(await inputSchemaProblems(services, row.project_id, step.result_schema ?? null, result, 'result')),
    ...(await missingEvidence(tx, execution, step, evidence)),
  ]
  if (problems.length > 0) raiseInvalid(problems)
  const hashed = await hashInputEvidence(context, row.project_id, evidence)
  const actor = actorOf(caller)
  const pieces = hashed.map(piece => ({ ...piece, playbook_execution_id: row.id, step_key: key }))
  const { timelineEvents } = await addEvidence(tx, execution.case, actor, pieces)
  execution.addTimelineEvents(timelineEvents)
  execution.setAction({ actor, skip: false, note })
  await completeNode(context, execution, key, result)
  return execution
}

/** Returns a problem for each required piece of evidence that is neither in `evidence` nor captured before. */
async function missingEvidence(
  tx: Tx,
  { row }: LockedExecution,
  { key, required_evidence }: PlaybookStep,
  evidence: readonly EvidenceInput[],
): Promise<Problem[]> {
  if (!required_evidence?.length) return []
  const present = new Set(evidence.map(({ kind, name }) => `${kind} ${name}`))
  if (required_evidence.every(({ kind, name }) => present.has(`${kind} ${name}`))) return []
  for (const { kind, name } of await listCapturedEvidence(tx, row.id, key)) present.add(`${kind} ${name}`)
  return required_evidence.flatMap(({ kind, name }) =>
    present.has(`${kind} ${name}`)
      ? []
      : [{ code: 'REQUIRED', path: 'evidence', message: `must contain the ${kind} ${name}` }],
  )
}

/**
 * Skips the manual step that an execution waits for, if the playbook declares it skippable.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, RESOURCE_NOT_FOUND
 */
export async function skipStep(
  context: CommandContext,
  row: ExecutionRow,
  key: string,
  reason: string,
): Promise<LockedExecution> {
  const { caller } = context
  const execution = await lockForCommand(context, row)
  const { record, step } = requireWaitingStep(execution, key)
  if (!step.skippable) raiseExecutionConflict(execution.row, `Step ${key} is not skippable`, record)
  execution.setAction({ actor: actorOf(caller), skip: true, note: reason })
  await completeNode(context, execution, key, null)
  return execution
}

const completeNode = (
  { tx, services }: Pick<CommandContext, 'tx' | 'services'>,
  execution: LockedExecution,
  node_id: string,
  artifact: unknown,
) => completeDrivenNode(tx, services, execution.row.orchestration_run_id, { node_id, artifact, driven: execution })

/**
 * Sets the assignee of a waiting manual step.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, RESOURCE_NOT_FOUND
 */
export async function assignStep(
  context: CommandContext,
  row: ExecutionRow,
  key: string,
  assignee: string | null,
): Promise<LockedExecution> {
  const { services } = context
  const execution = await lockForCommand(context, row)
  const { record } = requireWaitingStep(execution, key)
  const from = record.assignee
  if (from === assignee) return execution
  record.assignee = assignee
  const data = { changes: { assignee: { from, to: assignee } } }
  await execution.writeStep(record, { kind: 'updated', data }, services.clock.now().toISOString())
  return execution
}

/**
 * Cancels an execution with its run and all descendant runs.
 * @throws PLAYBOOK_EXECUTION_CONFLICT
 */
export async function cancelExecution(
  context: CommandContext,
  row: ExecutionRow,
  reason: string | null,
): Promise<LockedExecution> {
  const { tx, services } = context
  const execution = await lockForCommand(context, row)
  if (isExecutionTerminal(execution.row))
    raiseExecutionConflict(execution.row, `Execution ${row.id} is already ${execution.row.status}`)
  execution.setReason(reason)
  await cancelRun(tx, services, execution.row.orchestration_run_id, execution)
  return execution
}

/**
 * Restarts a failed execution from the failed step, in its pinned version and with the permissions of the caller.
 * Results of earlier steps are kept.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, CASE_STATE_CONFLICT, PROJECT_PAUSED
 */
export async function retryExecution(
  context: CommandContext,
  row: ExecutionRow,
  tool_context: Record<string, string> | null,
): Promise<LockedExecution> {
  const { tx, services, caller } = context
  await lockUnpaused(tx, row.project_id)
  const execution = await lockForCommand(context, row)
  const { row: stored, case: kase } = execution
  if (stored.status !== 'failed')
    raiseExecutionConflict(stored, `Execution ${row.id} is ${stored.status} and cannot be retried`)
  requireNotClosed(kase)
  const active = kase.active_execution_id === null ? null : await executionKind.find(tx, kase.active_execution_id)
  if (active) raiseExecutionConflict(active, `Case ${kase.id} has another active execution`)
  const playbook = await playbookKind.reference(tx, stored.playbook_id, stored.project_id)
  const run = playbook && (await runKind.find(tx, stored.orchestration_run_id))
  if (!run) return raiseExecutionConflict(stored, `Playbook ${stored.playbook_id} was deleted`)
  const authority = principalRecord(caller)
  const retried = await retryRun(tx, services, run, caller, {
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
    orchestration_run_id: retried.id,
    previous_orchestration_run_ids: [...stored.previous_orchestration_run_ids, run.id],
  } satisfies Partial<ExecutionRow>)
  // Steps whose failure was handled by a later step are not reset.
  const remaining = stored.definition.steps
    .filter(step => stepOutcomeOf(step, retried.outcomes) === null)
    .map(({ key }) => key)
  // A completed step is repeated if its answer would release a call twice.
  const isRepeated = (key: string) => Object.hasOwn(run.outcomes, key) && !Object.hasOwn(retried.outcomes, key)
  const steps = execution.steps.filter(
    ({ key, status }) => remaining.includes(key) && (status === 'failed' || status === 'cancelled' || isRepeated(key)),
  )
  for (const step of steps) Object.assign(step, PENDING_STEP, { attempts_before: step.attempt })
  await writeExecution(tx, stored, steps)
  execution.setCase(await attachToCase(tx, kase, stored, byCaller(caller), { retried: true }))
  return execution
}

/**
 * Pauses an execution with its run and all descendant runs. Active work finishes and nothing else starts; a waiting
 * manual step can still be completed. A paused execution keeps its first reason.
 * @throws PLAYBOOK_EXECUTION_CONFLICT
 */
export async function pauseExecution(
  context: CommandContext,
  row: ExecutionRow,
  reason: string | null,
): Promise<LockedExecution> {
  const { tx, services } = context
  const execution = await lockForCommand(context, row)
  if (isExecutionTerminal(execution.row))
    raiseExecutionConflict(execution.row, `Execution ${row.id} is already ${execution.row.status}`)
  if (execution.row.pause_requested_at !== null) return execution
  execution.addTimelineEvents([pauseEvent(execution, true, reason)])
  await pauseRun(tx, services, execution.row.orchestration_run_id, reason, execution)
  return execution
}

/**
 * Resumes an execution. Descendant runs remain paused.
 * @throws PLAYBOOK_EXECUTION_CONFLICT, PROJECT_PAUSED
 */
export async function resumeExecution(context: CommandContext, row: ExecutionRow): Promise<LockedExecution> {
  const { tx, services } = context
  await lockUnpaused(tx, row.project_id)
  const execution = await lockForCommand(context, row)
  if (execution.row.pause_requested_at === null)
    raiseExecutionConflict(execution.row, `Execution ${row.id} is not paused`)
  execution.addTimelineEvents([pauseEvent(execution, false, null)])
  await resumeRun(tx, services, execution.row.orchestration_run_id, { driven: execution })
  return execution
}

const pauseEvent = ({ row }: LockedExecution, to: boolean, reason: string | null): TimelineEvent => ({
  kind: 'updated',
  data: { changes: { paused: { from: !to, to } }, ...(reason === null ? {} : { reason }) },
  playbook_execution_id: row.id,
})

/**
 * Completes the event wait of an execution, unless that wait has ended.
 * @param wait.since start of the wait that the event was matched against
 */
export async function completeEventWait(
  tx: Tx,
  services: Services,
  { id, case_id, since }: { id: string; case_id: string; since: string },
  envelope: string,
): Promise<void> {
  const execution = await lockExecutionForWrite(tx, services, { id, case_id })
  if (!execution?.row.event_wait || execution.row.event_wait.since !== since) return
  await completeNode({ tx, services }, execution, execution.row.event_wait.step_key, parseExactJson(envelope))
}

/** Marks the overdue steps of an execution and emits one event per step. */
export async function markOverdue(tx: Tx, services: Services, ref: { id: string; case_id: string }): Promise<void> {
  const execution = await lockExecutionForWrite(tx, services, ref)
  if (execution) await execution.markOverdue(services.clock.now())
}
