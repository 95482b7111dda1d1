import { fileExceptionInTx } from '../../control/exceptions/file-exception.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { storableValue } from '../../core/api/storable-text.ts'
import type { Tx } from '../../core/db/writer.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { TurnOwner } from '../generations/loop/turn-owner.ts'
import { DECISION_SETTLED_CHANNEL, type DecisionRow, deciderKind, decisionKind } from './model.ts'
import { agentAnswers } from './prompt.ts'
import type { DecisionAnswer } from './questions.ts'
import { decisionOfTurn, endAttempt, settleDecisionRow } from './store.ts'

/** Modules that ask deciders, told in the transaction in which a decision settles. They lock no rows of their own: a message is enough. */
export const decisionWatchers =
  extensionPoint<(tx: Tx, decision: DecisionRow) => Promise<void>>('watchers of decisions')

/** The end of a decision. */
export type End = { answers: DecisionAnswer[]; error?: undefined } | { answers?: undefined; error: RecordedFailure }

/**
 * Ends a decision, unless it has ended: its answers or its failure, its event, the notice for those who wait. What it was
 * about is erased. Returns whether this was the end.
 */
export async function settleDecision(tx: Tx, id: string, end: End): Promise<boolean> {
  const settled = await settleDecisionRow(tx, id, {
    status: end.error ? 'failed' : 'completed',
    answers: end.answers ?? null,
    error: end.error ? withoutContent(end.error) : null,
  })
  if (!settled) return false
  await endAttempt(tx, id)
  tx.emit(decisionKind, settled.status as 'completed' | 'failed', settled)
  tx.notify(DECISION_SETTLED_CHANNEL, id)
  for (const watch of decisionWatchers.all()) await watch(tx, settled)
  if (end.answers && settled.decider_id !== null) await escalate(tx, settled, settled.decider_id, end.answers)
  return true
}

/** Files an exception for a decision whose least sure answer is below what its decider takes. */
async function escalate(
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
    title: `A decision of ${decider.name} is not sure of ${least.question}`,
    detail: { decision_id: id, ...least },
    dedup_key: null,
    agent_id,
  })
}

/** What may repeat the input: it is in no decision. */
const REPEATING = ['tool_response_body', 'provider_response_body', 'upstream_body']

/** A failure without what may repeat the input, at any depth; of an address what says whose it is. */
function withoutContent(failure: RecordedFailure): RecordedFailure {
  const cleaned = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(cleaned)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(
      Object.entries(value)
        .filter(([name]) => !REPEATING.includes(name))
        .map(([name, item]) => [name, name === 'tool_url' ? originOf(item) : cleaned(item)]),
    )
  }
  return storableValue(cleaned(failure)) as RecordedFailure
}

const originOf = (url: unknown): unknown => (typeof url === 'string' ? (URL.parse(url)?.origin ?? null) : url)

/** What `source` says of the turns of agents that make decisions. */
export const DECIDER_SOURCE = 'decider'

/** A turn that makes a decision settles it, whoever ends the turn. */
export const decisionTurnOwner: TurnOwner = {
  source: DECIDER_SOURCE,
  async settled(tx, { id }, { status, object, error }) {
    const decision = await decisionOfTurn(tx, id)
    if (!decision) return
    const end = status === 'completed' ? answered(decision, object) : { error: error ?? UNKNOWN }
    await settleDecision(tx, decision.id, end)
  },
}

const UNKNOWN: RecordedFailure = { code: 'GENERATION_FAILED', message: 'The turn failed' }

function answered({ asked }: DecisionRow, object: unknown): End {
  if (typeof object === 'object' && object !== null)
    return { answers: agentAnswers(asked, object as Record<string, unknown>) }
  // A turn that was stopped short ends without an answer.
  return {
    error: { code: 'OUTPUT_SCHEMA_VALIDATION_FAILED', message: 'The turn ended without an answer to the questions' },
  }
}
