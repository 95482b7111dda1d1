import { fileExceptionInTx } from '#control/exceptions/file-exception.ts'
import type { RecordedFailure } from '#core/base/errors.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import { storableValue } from '#core/base/storable-text.ts'
import { waiters } from '#core/work/waiters.ts'
import type { Tx } from '#core/writes/writer.ts'
import type { TurnOwner } from '../generations/loop/turn-owner.ts'
import { DECISION_SETTLED_CHANNEL, type DecisionRow, deciderKind, decisionKind } from './model.ts'
import { agentAnswers } from './prompt.ts'
import type { DecisionAnswer } from './questions.ts'
import { deleteDecisionWork, findDecisionOfTurn, settleDecisionRow } from './store.ts'

export const decisionWaiters = waiters<DecisionRow>('decisions', 'execution/deciders')

/** Outcome of a decision. */
export type DecisionOutcome =
  | { answers: DecisionAnswer[]; error?: undefined }
  | { answers?: undefined; error: RecordedFailure }

/**
 * Settles a decision with its answers or its failure, its event and a notification for waiters, and erases its input.
 * Returns false if it was already settled.
 */
export async function settleDecision(tx: Tx, id: string, outcome: DecisionOutcome): Promise<boolean> {
  const settled = await settleDecisionRow(tx, id, {
    status: outcome.error ? 'failed' : 'completed',
    answers: outcome.answers ?? null,
    error: outcome.error ? withoutContent(outcome.error) : null,
  })
  if (!settled) return false
  await deleteDecisionWork(tx, id)
  tx.emit(decisionKind, settled.status as 'completed' | 'failed', settled)
  tx.notify(DECISION_SETTLED_CHANNEL, id)
  await decisionWaiters.notify(tx, settled)
  if (outcome.answers && settled.decider_id !== null)
    await escalateIfUncertain(tx, settled, settled.decider_id, outcome.answers)
  return true
}

/** Files an exception if the lowest confidence is below the threshold of the decider. */
async function escalateIfUncertain(
  tx: Tx,
  { id, project_id, agent_id }: DecisionRow,
  deciderId: string,
  answers: DecisionAnswer[],
) {
  const rated = answers.flatMap(answer =>
    'confidence' in answer && typeof answer.confidence === 'number'
      ? { question: answer.name, confidence: answer.confidence }
      : [],
  )
  if (rated.length === 0) return
  const least = rated.reduce((lowest, each) => (each.confidence < lowest.confidence ? each : lowest))
  const decider = await deciderKind.find(tx, deciderId)
  if (decider?.escalate_below == null || least.confidence >= decider.escalate_below) return
  fileExceptionInTx(tx, {
    project_id,
    kind: 'manual',
    severity: 'info',
    title: `Decision of ${decider.name} is uncertain about ${least.question}`,
    detail: { decision_id: id, ...least },
    dedup_key: null,
    agent_id,
  })
}

/** Metadata fields that may repeat the input, which no decision stores. */
const RESPONSE_FIELDS = ['tool_response_body', 'provider_response_body', 'upstream_body']

/** Returns a failure without fields that may repeat the input, at any depth; URLs are reduced to their origin. */
function withoutContent(failure: RecordedFailure): RecordedFailure {
  const redact = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(redact)
    if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
    return Object.fromEntries(
      Object.entries(value)
        .filter(([name]) => !RESPONSE_FIELDS.includes(name))
        .map(([name, item]) => [name, name === 'tool_url' ? originOf(item) : redact(item)]),
    )
  }
  return storableValue(redact(failure)) as RecordedFailure
}

const originOf = (url: unknown): unknown => (typeof url === 'string' ? (URL.parse(url)?.origin ?? null) : url)

/** `source` of the agent turns that make decisions. */
export const DECIDER_SOURCE = 'decider'

/** Settles a decision with the outcome of its turn. */
export const decisionTurnOwner: TurnOwner = {
  source: DECIDER_SOURCE,
  async settled(tx, { id }, { status, object, error }) {
    const decision = await findDecisionOfTurn(tx, id)
    if (!decision) return
    const outcome = status === 'completed' ? turnOutcome(decision, object) : { error: error ?? UNKNOWN }
    await settleDecision(tx, decision.id, outcome)
  },
}

const UNKNOWN: RecordedFailure = { code: 'GENERATION_FAILED', message: 'The turn failed' }

function turnOutcome({ asked }: DecisionRow, object: unknown): DecisionOutcome {
  if (typeof object === 'object' && object !== null)
    return { answers: agentAnswers(asked, object as Record<string, unknown>) }
  // A turn that stopped early has no answer.
  return {
    error: { code: 'OUTPUT_SCHEMA_VALIDATION_FAILED', message: 'The turn ended without an answer to the questions' },
  }
}
