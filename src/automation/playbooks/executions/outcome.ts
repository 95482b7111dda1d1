import { raiseFieldsTooBig } from '#automation/cases/change.ts'
import { FIELDS_KIB } from '#automation/cases/model.ts'
import type { DrivenOutcome } from '#automation/orchestrations/runs/engine/driver.ts'
import type { NodeExecutionRow as Attempt } from '#automation/orchestrations/runs/engine/node-execution-store.ts'
import type { ExpressionScope } from '#automation/orchestrations/runs/engine/run-state.ts'
import type { RunRow } from '#automation/orchestrations/runs/model.ts'
import { AppError, type RecordedFailure } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { ExpressionError } from '#core/expressions/evaluate.ts'
import { evaluate, evaluateMapping } from '#core/expressions/evaluation.ts'
import { conditionOf } from '../definition/compile-playbook.ts'
import { FAIL, type PlaybookStep } from '../definition/definition.ts'
import type { PlaybookStepRow } from './model.ts'

const MAX_OUTCOME_CHARS = 255

/** Outcome of a step in expressions of later steps. */
type StepOutcome = { output: unknown; error: RecordedFailure | null }

/** Returns an error specific to playbook steps. */
export const stepFailed = (step_key: string, reason: string, message: string, more: object = {}): AppError =>
  new AppError('PLAYBOOK_STEP_FAILED', { message, meta: { step_key, ...more, reason } })

/** Returns the status of a step from an attempt of its node. `skips`: a caller skips the step. */
export function executionStatus(
  { status, node_type, generation_id, error }: Attempt,
  skips: boolean,
): PlaybookStepRow['status'] {
  if (status === 'waiting') return node_type === 'delay' ? 'waiting' : 'running'
  if (status === 'requires_action') return generation_id === null ? 'waiting' : 'running'
  if (status === 'completed') return error !== null ? 'failed' : skips ? 'skipped' : 'completed'
  return status
}

/** Returns the outcome of a step from the outcomes of its run; null if it has none yet. */
export function stepOutcomeOf({ key, type }: PlaybookStep, outcomes: RunRow['outcomes']): StepOutcome | null {
  const own = outcomes[key]
  const outcome = own ?? outcomes[conditionOf(key)]
  if (!outcome || (!own && outcome.label === 'true')) return null
  if (outcome.label === 'failed' && type !== 'branch')
    return { output: null, error: (outcome.artifact as { error: RecordedFailure }).error }
  if (!own) return { output: null, error: null }
  return { output: type === 'branch' ? { taken: own.label } : own.artifact, error: null }
}

/** Converts the outcome of an attempt to the outcome of its step. Throws the error that fails the step. */
export function toStepOutcome(
  step: PlaybookStep,
  attempt: Attempt,
  outcome: DrivenOutcome,
  now: string,
): DrivenOutcome {
  const { key, type } = step
  const { artifact, label } = outcome
  switch (type) {
    case 'instruct_agent': {
      if (!isObject(artifact))
        throw new AppError('ORCHESTRATION_NODE_FAILED', {
          message: "The turn's content was not stored, so the step has no output",
          meta: { node_id: key, reason: 'content' },
        })
      const { content, object } = artifact
      return { ...outcome, artifact: object == null ? { content } : { content, object } }
    }
    case 'call_tool':
      if (label === 'blocked' || label === 'tripwire')
        throw new AppError('TOOL_DISPATCH_FAILED', { meta: { tool_id: step.tool_id, outcome: label, step_key: key } })
      if (label === 'rejected' || label === 'expired') throw approvalFailure(key, label)
      return outcome
    case 'require_approval': {
      const route = label === 'rejected' ? step.on_rejected : label === 'expired' ? step.on_expired : undefined
      if ((label === 'rejected' || label === 'expired') && (route ?? FAIL) === FAIL) throw approvalFailure(key, label)
      const { decision, approval_id, resolved_by = null, reason = null } = artifact as Record<string, unknown>
      return { ...outcome, artifact: { decision, approval_id, resolved_by, reason } }
    }
    case 'wait':
      if (label === 'expired') throw stepFailed(key, 'timeout', 'The event did not occur before the timeout')
      if (step.event) return { ...outcome, artifact: { waited_until: now, event: artifact } }
      return {
        ...outcome,
        artifact: {
          waited_until:
            step.duration_seconds == null
              ? (artifact as { waited: unknown }).waited
              : new Date(attempt.wake_at ?? now).toISOString(),
        },
      }
    case 'manual':
      if (label === 'expired') throw stepFailed(key, 'timeout', 'The step was not completed before the timeout')
      return outcome
    default:
      return outcome
  }
}

const approvalFailure = (key: string, label: string): AppError =>
  stepFailed(key, label, label === 'rejected' ? 'The approval was rejected' : 'The approval expired without a decision')

/**
 * Evaluates the fields that a step writes to its case.
 * @throws PLAYBOOK_STEP_FAILED (expression), VALIDATION_FAILED over the size limit of a case, SERVICE_NOT_READY
 */
export const caseWritesOf = (
  { services, project_id }: ExpressionScope,
  { key, case_writes }: PlaybookStep,
  root: unknown,
): Promise<Record<string, unknown>> =>
  evaluateMapping(services, project_id, case_writes, root, {
    bytes: FIELDS_KIB * 1024,
    tooLarge: raiseFieldsTooBig,
    failed: (name, { message }) => {
      const field = `case_writes.${name}`
      return stepFailed(key, 'expression', `The expression of ${field} ${message}`, { field })
    },
  })

/** Evaluates the outcome of an execution as text; null if it has none or the evaluation fails. */
export async function outcomeText(
  { services, project_id }: ExpressionScope,
  outcome: unknown,
  root: unknown,
): Promise<string | null> {
  try {
    const isLiteral = outcome == null || typeof outcome === 'string'
    const value = isLiteral ? outcome : await evaluate(services, project_id, outcome, root)
    if (value === null || value === undefined) return null
    return truncateChars(typeof value === 'string' ? value : JSON.stringify(value), MAX_OUTCOME_CHARS)
  } catch (error) {
    if (!(error instanceof ExpressionError)) throw error
    return null
  }
}
