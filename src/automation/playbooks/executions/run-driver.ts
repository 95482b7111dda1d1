import { isDeepStrictEqual } from 'node:util'
import { mergeFields, moveCase } from '#automation/cases/change.ts'
import { addEvidence, type HashedEvidence } from '#automation/cases/evidence.ts'
import { linkCase } from '#automation/cases/links.ts'
import { type CaseRow, type CaseStatus, caseKind, type LinkType } from '#automation/cases/model.ts'
import { timelineInsert } from '#automation/cases/store.ts'
import {
  AUTOMATION,
  appendTimeline,
  type CaseActor,
  type TimelineEvent,
  timelineEntries,
} from '#automation/cases/timeline.ts'
import type {
  DrivenChange,
  DrivenOutcome,
  DrivenRun,
  RunDriver,
} from '#automation/orchestrations/runs/engine/driver.ts'
import type { NodeExecutionRow as Attempt } from '#automation/orchestrations/runs/engine/node-execution-store.ts'
import type { ExpressionScope, ExpressionState } from '#automation/orchestrations/runs/engine/run-state.ts'
import type { RunRow } from '#automation/orchestrations/runs/model.ts'
import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { Values } from '#core/api/kind.ts'
import { systemClock } from '#core/base/clock.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { ModelMessage } from '#execution/providers/model-messages.ts'
import { branchTargets, stepOf } from '../definition/compile-playbook.ts'
import { isCaptured, type PlaybookStep } from '../definition/definition.ts'
import { MANAGER } from '../definition/versions.ts'
import { stepContent } from './erase.ts'
import {
  type ExecutionRow,
  executionKind,
  isExecutionTerminal,
  type PlaybookStepRow,
  presentExecution,
  presentStep,
  raiseExecutionConflict,
  type StepActor,
  type WaitingOn,
} from './model.ts'
import { caseWritesOf, executionStatus, outcomeText, stepFailed, stepOutcomeOf, toStepOutcome } from './outcome.ts'
import { executionWrite, findChildRunId, findExecutionOfRun, listSteps, lockExecution, stepsWrite } from './store.ts'

/** Caller's action on a waiting manual step. */
type StepAction = { actor: StepActor; skip: boolean; note: string | null }

/**
 * An execution with its steps and its case, locked for the duration of a transaction. Collects the effects of run
 * changes on them and writes them with the run.
 */
export class LockedExecution implements DrivenRun {
  readonly tx: Tx
  readonly row: ExecutionRow
  readonly steps: PlaybookStepRow[]
  #case: CaseRow
  /** Action of a caller. Null if the run advances by itself. */
  #action: StepAction | null = null
  /** Actor of timeline entries. */
  #by: CaseActor = AUTOMATION
  /** Reason for a cancellation. */
  #reason: string | null = null
  readonly #scope: ExpressionScope
  readonly #before: CaseRow
  /** Case writes of steps in this transaction, with the case before each. */
  readonly #caseWrites = new Map<string, { names: string[]; before: CaseRow }>()
  readonly #timelineEvents: TimelineEvent[] = []
  readonly #pieces: HashedEvidence[] = []
  readonly #links: { type: LinkType; target_id: string }[] = []
  readonly #events: { verb: 'step_waiting' | 'step_completed'; step: PlaybookStepRow }[] = []
  readonly #changedSteps = new Set<PlaybookStepRow>()
  /** Whether the execution settles in this transaction. */
  #hasSettled = false

  constructor(tx: Tx, services: Services, row: ExecutionRow, steps: readonly PlaybookStepRow[], kase: CaseRow) {
    this.tx = tx
    this.#scope = { services, project_id: row.project_id }
    this.row = row
    this.steps = [...steps]
    this.#case = kase
    this.#before = kase
  }

  /** The case as the steps of this transaction have written it. */
  get case(): CaseRow {
    return this.#case
  }

  /** Makes a caller the actor of timeline entries. */
  actAs(by: CaseActor): void {
    this.#by = by
  }

  /** Sets what a caller does with the step that is completed next. */
  setAction(action: StepAction): void {
    this.#action = action
  }

  /** Sets the reason of a cancellation. */
  setReason(reason: string | null): void {
    this.#reason = reason
  }

  /** Replaces the case by its written row. */
  setCase(kase: CaseRow): void {
    this.#case = kase
  }

  step(key: string): { record: PlaybookStepRow; step: PlaybookStep } | null {
    const record = this.steps.find(each => each.key === key)
    const step = this.row.definition.steps.find(each => each.key === key)
    return record && step ? { record, step } : null
  }

  /** Returns the roots of expressions of steps. */
  roots(run: RunRow): ExpressionState {
    return this.#rootsWith(run.outcomes) as never
  }

  #rootsWith(outcomes: RunRow['outcomes']) {
    const { id, playbook_id, playbook_name, playbook_version, case_id, metadata, started_by, started_at } = this.row
    const steps = this.row.definition.steps.map(step => [step.key, stepOutcomeOf(step, outcomes)] as const)
    return {
      case: caseKind.present(this.#case),
      input: this.row.input,
      steps: Object.fromEntries(steps.flatMap(([key, outcome]) => (outcome ? [[key, outcome]] : []))),
      execution: { id, playbook_id, playbook_name, playbook_version, case_id, metadata, started_by, started_at },
    }
  }

  label({ id }: { id: string }, value: unknown): string {
    const { key, isCondition } = stepOf(id)
    const position = this.row.definition.steps.findIndex(step => step.key === key)
    if (isCondition) return String(Boolean(value))
    const targets = branchTargets(this.row.definition.steps, position)
    const first = (value as unknown[]).findIndex(Boolean)
    return first < 0 ? targets[targets.length - 1] : targets[first]
  }

  messages({ id }: { id: string }, input: Record<string, unknown>): ModelMessage[] | null {
    const step = this.step(stepOf(id).key)?.step
    const user = (content: string): ModelMessage[] => [{ role: 'user', content }]
    if (!step?.input_mapping) return user([step?.instructions, JSON.stringify(input.case)].filter(Boolean).join('\n\n'))
    // The engine uses the messages of the input unchanged.
    if (Array.isArray(input.messages)) return null
    return user(typeof input.prompt === 'string' ? input.prompt : JSON.stringify(input))
  }

  failure({ id }: { id: string }, failure: RecordedFailure): RecordedFailure {
    const { code, message, meta } = failure
    const { reason, node_id: _node, ...more } = meta ?? {}
    if (code !== 'ORCHESTRATION_NODE_FAILED' || (reason !== 'expression' && reason !== 'timeout')) return failure
    return stepFailed(stepOf(id).key, reason, message, more).recorded()
  }

  async outcome(run: RunRow, attempt: Attempt, nodeOutcome: DrivenOutcome, now: string): Promise<DrivenOutcome> {
    const { key, isCondition } = stepOf(attempt.node_id)
    const found = this.step(key)
    if (isCondition || !found) return nodeOutcome
    const outcome = toStepOutcome(found.step, attempt, nodeOutcome, now)
    await this.#applyCaseWrites(found.step, run, outcome)
    return outcome
  }

  /** Applies the case writes of a step, so that later steps read them. */
  async #applyCaseWrites(step: PlaybookStep, run: RunRow, { artifact, label }: DrivenOutcome): Promise<void> {
    if (!step.case_writes || this.#action?.skip) return
    const output = step.type === 'branch' ? { taken: label } : artifact
    const root = { ...this.#rootsWith(run.outcomes), output }
    const writes = await caseWritesOf(this.#scope, step, root)
    const fields = mergeFields(this.#case.fields, writes)
    const changed = Object.keys(writes).filter(name => !isDeepStrictEqual(this.#before.fields[name], fields[name]))
    this.#caseWrites.set(step.key, { names: changed, before: this.#case })
    this.#case = { ...this.#case, fields }
  }

  /** Reverts the case writes of a step whose outcome was refused afterwards. No later step has run yet. */
  #revertCaseWrites(key: string): void {
    const written = this.#caseWrites.get(key)
    if (!written) return
    this.#case = { ...this.#case, fields: written.before.fields }
    this.#caseWrites.delete(key)
  }

  /** Writes the effects of a run change or command: steps, timeline, evidence, case and events. */
  async save({ run, changed, now }: DrivenChange): Promise<void> {
    for (const attempt of changed) await this.#applyAttempt(run, attempt, now)
    await this.#deriveStatus(run, now)
    if (this.#hasSettled && run.status === 'failed') this.#fileException(run)
    await this.#write(now)
  }

  /** Updates the record of a step from an attempt of its node. */
  async #applyAttempt(run: RunRow, attempt: Attempt, now: string): Promise<void> {
    const { key, isCondition } = stepOf(attempt.node_id)
    const found = this.step(key)
    if (!found) return
    const { record, step } = found
    const before = record.status
    if (isCondition) return this.#applyCondition(record, attempt, now)
    const status = executionStatus(attempt, this.#action?.skip === true)
    if (status === 'failed') this.#revertCaseWrites(key)
    // At the end of the run, the unused node of a step that `when` has already skipped is skipped too.
    if (status === 'skipped' && attempt.status === 'skipped' && before !== 'pending') return
    // A caller has skipped the step, which completed its node.
    if (status === 'completed' && before === 'skipped') return
    record.status = status
    this.#changedSteps.add(record)
    if (attempt.status === 'skipped') {
      record.completed_at = now
      return
    }
    record.attempt = record.attempts_before + attempt.attempt
    record.input = step.type === 'manual' || step.type === 'branch' ? null : attempt.input
    record.generation_id = attempt.generation_id
    record.approval_id = attempt.approval_id
    record.decision_id = attempt.decision_id
    record.tool_id = step.tool_id ?? null
    record.started_at ??= attempt.started_at ?? attempt.created_at
    record.error = attempt.error
    record.completed_at = status === 'running' || status === 'waiting' ? null : (attempt.completed_at ?? now)
    if (step.type === 'run_orchestration')
      record.orchestration_run_id ??= await findChildRunId(this.tx, run.id, attempt.id)
    if (record.approval_id !== null && before !== 'waiting' && status === 'waiting')
      this.#links.push({ type: 'approval', target_id: record.approval_id })
    if (before === status) return
    if (status === 'waiting') this.#startWait(step, record, attempt, now)
    else if (status === 'completed') await this.#completeStep(step, record, attempt)
    else if (status === 'failed') this.#addTimelineEvent('step_failed', record, { error: record.error })
    else if (status === 'skipped') {
      this.#recordAction(record)
      this.#addTimelineEvent('step_skipped', record, { reason: record.note })
    }
  }

  #applyCondition(record: PlaybookStepRow, attempt: Attempt, now: string): void {
    if (attempt.status !== 'completed' && attempt.status !== 'failed') return
    if (attempt.error !== null) {
      record.status = 'failed'
      record.attempt = record.attempts_before + attempt.attempt
      record.error = attempt.error
      record.started_at ??= now
      this.#addTimelineEvent('step_failed', record, { error: record.error })
    } else if (attempt.label === 'false') {
      record.status = 'skipped'
      this.#addTimelineEvent('step_skipped', record, { reason: 'when' })
    } else return
    record.completed_at = now
    this.#changedSteps.add(record)
  }

  #startWait(step: PlaybookStep, record: PlaybookStepRow, attempt: Attempt, now: string): void {
    if (step.type === 'wait') {
      const { deadline_at } = attempt
      const expires_at = deadline_at && new Date(deadline_at).toISOString()
      // `since` is set when the execution is written.
      if (step.event) {
        const { pattern, filter = null } = step.event
        this.row.event_wait = { step_key: step.key, pattern, filter, since: '', expires_at }
      }
      return
    }
    if (step.type === 'manual') {
      const assignee = attempt.input?.assignee ?? null
      record.assignee = assignee === null || typeof assignee === 'string' ? assignee : JSON.stringify(assignee)
      record.due_at =
        step.due_seconds == null ? null : new Date(Date.parse(now) + step.due_seconds * 1000).toISOString()
    }
    const { assignee, due_at, approval_id } = record
    this.#addTimelineEvent('step_waiting', record, approval_id === null ? { assignee, due_at } : { approval_id })
    this.#events.push({ verb: 'step_waiting', step: record })
  }

  async #completeStep(step: PlaybookStep, record: PlaybookStepRow, attempt: Attempt): Promise<void> {
    record.output = step.type === 'branch' ? { taken: attempt.label } : attempt.output
    this.#recordAction(record)
    if (record.approval_id !== null) await this.#writeDecision(record, attempt)
    const written = this.#caseWrites.get(step.key)?.names ?? []
    this.#addTimelineEvent('step_completed', record, {
      attempt: record.attempt,
      ...(record.note === null ? {} : { note: record.note }),
      ...(written.length === 0
        ? {}
        : {
            fields: Object.fromEntries(
              written.map(name => [
                name,
                { from: this.#before.fields[name] ?? null, to: this.#case.fields[name] ?? null },
              ]),
            ),
          }),
    })
    this.#events.push({ verb: 'step_completed', step: record })
    const content = record.output
    const isEmpty = content === null || (isObject(content) && Object.keys(content).length === 0)
    if (!isCaptured(step) || (step.type === 'manual' && isEmpty)) return
    this.#pieces.push({
      name: step.title,
      kind: step.type === 'ask_decider' ? 'decision' : step.type === 'require_approval' ? 'approval' : 'output',
      content: typeof content === 'string' || isObject(content) ? content : { result: content ?? null },
      playbook_execution_id: this.row.id,
      step_key: step.key,
      generation_id: record.generation_id,
    })
  }

  /** Writes a decision to the timeline immediately, before the entries that follow from it. */
  async #writeDecision({ key, approval_id }: PlaybookStepRow, { output }: Attempt): Promise<void> {
    const {
      decision = 'approved',
      resolved_by = null,
      reason = null,
    } = (isObject(output) ? output : {}) as Record<string, string | null | undefined>
    const by: CaseActor = { principal_kind: 'approval', principal_id: resolved_by }
    const event: TimelineEvent = {
      kind: 'approval_resolved',
      data: { approval_id, decision, reason },
      playbook_execution_id: this.row.id,
      step_key: key,
    }
    await this.tx.query(voidStatement`${timelineInsert(timelineEntries(this.#case, by, [event]), sql.fragment`true`)}`)
  }

  #recordAction(record: PlaybookStepRow): void {
    if (!this.#action) return
    record.completed_by = this.#action.actor
    record.note = this.#action.note
  }

  #addTimelineEvent(
    kind: TimelineEvent['kind'],
    step: PlaybookStepRow | null,
    data: Record<string, unknown> = {},
  ): void {
    this.#timelineEvents.push({ kind, data, playbook_execution_id: this.row.id, step_key: step?.key ?? null })
  }

  /** Derives the status of the execution from its run and its steps. */
  async #deriveStatus(run: RunRow, now: string): Promise<void> {
    const { row } = this
    if (isExecutionTerminal(row)) return
    row.started_at ??= run.started_at
    const current = this.steps.find(({ status }) => status === 'running' || status === 'waiting')
    row.current_step_key = current?.key ?? null
    row.waiting_on = null
    if (current?.status !== 'waiting' || row.event_wait?.step_key !== current.key) row.event_wait = null
    // A pause of the project is not a pause of the execution.
    row.pause_requested_at = run.paused_with_project ? null : run.pause_requested_at
    row.pause_reason = run.paused_with_project ? null : run.pause_reason
    if (run.status === 'succeeded') await this.#complete(run, now)
    else if (run.status === 'failed' || run.status === 'expired') {
      row.status = 'failed'
      row.error = run.error ?? new AppError('INTERNAL_ERROR').recorded()
      row.current_step_key = run.failed_node_id === null ? row.current_step_key : stepOf(run.failed_node_id).key
      row.completed_at = now
      this.#addTimelineEvent('execution_failed', null, { error: row.error, step_key: row.current_step_key })
    } else if (run.status === 'cancelled') {
      row.status = 'cancelled'
      row.completed_at = now
      this.#addTimelineEvent('execution_cancelled', null, { reason: this.#reason })
    } else if (current?.status === 'waiting') {
      row.status = 'waiting'
      row.waiting_on = this.#waitingOn(current, run)
    } else if (row.started_at !== null) row.status = 'running'
    this.#hasSettled = isExecutionTerminal(row)
    if (this.#hasSettled) Object.assign(row, { event_wait: null, pause_requested_at: null, pause_reason: null })
  }

  #waitingOn({ key, type, assignee, due_at, approval_id }: PlaybookStepRow, run: RunRow): WaitingOn {
    if (approval_id !== null) return { type: 'approval', step_key: key, approval_id }
    const { event_wait } = this.row
    if (event_wait) {
      const { pattern: event_pattern, expires_at } = event_wait
      return { type: 'event', step_key: key, event_pattern, expires_at }
    }
    return type === 'manual'
      ? { type: 'manual', step_key: key, assignee, due_at }
      : { type: 'timer', step_key: key, resumes_at: run.wake_at && new Date(run.wake_at).toISOString() }
  }

  async #complete(run: RunRow, now: string): Promise<void> {
    const { row } = this
    const { outcome } = row.definition
    row.status = 'completed'
    row.completed_at = now
    row.outcome = await outcomeText(this.#scope, outcome, this.#rootsWith(run.outcomes))
    row.output = Object.fromEntries(
      this.steps.flatMap(({ key, status, output }) => (status === 'completed' ? [[key, output ?? null]] : [])),
    )
    this.#addTimelineEvent('execution_completed', null, { outcome: row.outcome })
  }

  #fileException(run: RunRow): void {
    const { id, case_id, project_id, current_step_key: step_key, error } = this.row
    const exception = fileExceptionInTx(this.tx, {
      project_id,
      kind: 'run_failed',
      severity: 'critical',
      title: `Playbook execution failed${step_key === null ? '' : ` at step ${step_key}`}`,
      detail: { playbook_execution_id: id, case_id, step_key, error },
      dedup_key: run.id,
      orchestration_run_id: run.id,
    })
    this.#links.push({ type: 'exception', target_id: exception })
  }

  /** Writes execution, steps, case, timeline and events. */
  async #write(now: string): Promise<void> {
    const { tx, row } = this
    row.updated_at = now
    for (const link of this.#links)
      this.#timelineEvents.push(...(await linkCase(tx, this.#case, null, link)).timelineEvents)
    if (this.#pieces.length > 0) {
      const captured_by = this.#action?.actor ?? row.started_by
      if (captured_by === null) throw new Error(`execution ${row.id} has no started_by`)
      const { timelineEvents } = await addEvidence(tx, this.#case, captured_by, this.#pieces)
      this.#timelineEvents.push(...timelineEvents)
    }
    await this.#moveCase(now)
    // Uses the clock that stamps events, after the events of this transaction.
    if (row.event_wait) row.event_wait.since ||= systemClock.now().toISOString()
    const steps = [...this.#changedSteps]
    tx.alongside(guard => executionWrite(row, guard))
    if (steps.length > 0) tx.alongside(guard => stepsWrite(steps, guard))
    const data = presentExecution(row, this.steps)
    for (const { verb, step } of this.#events)
      tx.emit(executionKind, verb, row, { data, extra: { step: presentStep(step) } })
    if (this.#hasSettled)
      tx.emit(executionKind, row.status as 'completed' | 'failed' | 'cancelled', row, {
        data,
        ...(row.status === 'failed' ? { extra: { error: row.error, step_key: row.current_step_key } } : {}),
      })
  }

  async #moveCase(now: string): Promise<void> {
    const { tx, row } = this
    const by = this.#by
    const status = caseStatus(row)
    const values: Values<CaseRow> & { status: CaseStatus } = { status }
    if (!isDeepStrictEqual(this.#case.fields, this.#before.fields)) values.fields = this.#case.fields
    if (isExecutionTerminal(row)) {
      values.active_execution_id = null
      if (status === 'resolved') Object.assign(values, { outcome: row.outcome, resolved_at: now })
    }
    const isChanged = status !== this.#before.status || values.fields !== undefined || isExecutionTerminal(row)
    if (!isChanged) return appendTimeline(tx, this.#case, by, this.#timelineEvents)
    this.#case = await moveCase(tx, this.#before, values, by, {
      before: this.#timelineEvents,
      playbook_execution_id: row.id,
      ...(status === 'resolved' ? { data: { outcome: row.outcome } } : {}),
    })
    if (values.fields !== undefined) tx.emit(caseKind, 'updated', this.#case, { extra: { changed: ['fields'] } })
  }

  /** Adds timeline entries of a command, in order. */
  addTimelineEvents(events: readonly TimelineEvent[]): void {
    this.#timelineEvents.push(...events)
  }

  /** Marks manual steps that are overdue at a time and emits their events. */
  async markOverdue(at: Date): Promise<void> {
    const overdueSteps = this.steps.filter(
      ({ status, due_at, overdue }) => status === 'waiting' && !overdue && due_at !== null && new Date(due_at) <= at,
    )
    for (const record of overdueSteps) {
      record.overdue = true
      await this.writeStep(record, null, at.toISOString())
      const data = presentExecution(this.row, this.steps)
      this.tx.emit(executionKind, 'step_overdue', this.row, { data, extra: { step: presentStep(record) } })
    }
  }

  /** Writes a change of a step that does not change the run, such as its assignee. */
  async writeStep(record: PlaybookStepRow, event: TimelineEvent | null, now: string): Promise<void> {
    this.#changedSteps.add(record)
    if (event) this.#timelineEvents.push({ ...event, playbook_execution_id: this.row.id, step_key: record.key })
    if (this.row.waiting_on?.step_key === record.key && record.type === 'manual')
      this.row.waiting_on = { ...this.row.waiting_on, assignee: record.assignee }
    const { tx, row } = this
    row.updated_at = now
    appendTimeline(tx, this.#case, this.#by, this.#timelineEvents)
    tx.alongside(guard => executionWrite(row, guard))
    tx.alongside(guard => stepsWrite([record], guard))
  }
}

/** Returns the status of the case that follows from the status of its execution. */
function caseStatus({ status, definition }: ExecutionRow): CaseStatus {
  if (status === 'waiting') return 'waiting'
  if (status === 'completed') return definition.resolve_case ? 'resolved' : 'open'
  return status === 'failed' || status === 'cancelled' ? 'open' : 'in_progress'
}

/** Locks an execution and its case. The lock order is case, execution, steps, run. */
export async function lockExecutionForWrite(
  tx: Tx,
  services: Services,
  { id, case_id }: { id: string; case_id: string },
): Promise<LockedExecution | null> {
  const kase = await caseKind.find(tx, case_id, true)
  const row = kase && (await lockExecution(tx, id))
  return row && new LockedExecution(tx, services, row, await listSteps(tx, id), kase)
}

/** Driver of the runs of playbook executions. */
export const playbookRuns: RunDriver = {
  name: MANAGER,
  content: stepContent,
  async open(tx, services, runId) {
    const ref = await findExecutionOfRun(tx, runId)
    const execution = ref && (await lockExecutionForWrite(tx, services, ref))
    // After a retry, another run drives the execution.
    return execution && execution.row.orchestration_run_id === runId ? execution : null
  },
  async refuse(db: Queryable, runId: string) {
    const ref = await findExecutionOfRun(db, runId)
    const row = ref && (await executionKind.find(db, ref.id))
    const message = `Run ${runId} is controlled by a playbook execution`
    if (row) return raiseExecutionConflict(row, message)
    throw new AppError('PLAYBOOK_EXECUTION_CONFLICT', { message })
  },
}
