import type { z } from 'zod'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError, raise, raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { narrowAuthority, reachOf } from '#core/iam/authority.ts'
import { type PrincipalRecord, principalRecord } from '#core/iam/caller.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import { writeFact } from '#memory/entries/write.ts'
import { canReachMemory } from '#memory/reach.ts'
import { actorOfTurn } from '../generations/loop/acting-caller.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { raiseFailure, subscribeTurn } from '../generations/request/wait-for-turn.ts'
import { readSteps } from '../generations/traces/file.ts'
import { isRefused } from '../providers/model-messages.ts'
import { allowHandler } from './check.ts'
import { handlerTimeout, requireFacts } from './extract.ts'
import { factFromTurn } from './fact-provenance.ts'
import { type ExtractedFact, factsOfText } from './facts.ts'
import { createHandlerTurn, requestHandlerFacts } from './handler-turn.ts'
import type { MemoryRuleRow, RuleTest, RuleTestInput } from './model.ts'

type TestContext = Context<Record<string, never>, z.output<typeof RuleTestInput>, MemoryRuleRow>

/**
 * Returns the facts that a rule would extract from a past turn, with the outcome of writing each. The handler runs as
 * the caller, and nothing is written.
 * @throws GENERATION_NOT_FOUND, GENERATION_CONTENT_UNAVAILABLE, VALIDATION_FAILED for a turn that has not completed or was refused,
 *   the errors of the handler
 */
export async function testRule(context: TestContext): Promise<z.output<typeof RuleTest>> {
  const { services, resource: rule, body } = context
  const turn = await requireReadableTurn(context, body.generation_id)
  await requireUnpaused(services.pool, rule.project_id)
  allowHandler(context, rule)
  const facts = rule.agent_id === null ? await requestFacts(context, turn) : await runHandlerTurn(context, turn)
  return { facts: await Promise.all(facts.map(fact => previewWrite(context, turn, fact))) }
}

/** Returns a completed turn of the project that the caller may read. */
async function requireReadableTurn(
  { services, resource: rule, allow, caller }: TestContext,
  id: string,
): Promise<GenerationRow> {
  const turn = isIdOf(generationKind, id) ? await generationKind.find(services.pool, id) : null
  if (turn?.project_id !== rule.project_id) return raise('GENERATION_NOT_FOUND', { meta: { id } })
  // The facts belong to the end user of the turn.
  if (!canReachMemory(reachOf(caller), { actor_id: actorOfTurn(turn) }))
    return raise('GENERATION_NOT_FOUND', { meta: { id } })
  allow('generations:GetGeneration', { kind: generationKind, row: turn })
  if (turn.status !== 'completed')
    raiseInvalid({ code: 'INVALID_VALUE', path: 'generation_id', message: 'is not a completed turn' })
  if (turn.content_redacted_at !== null) raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  if ((await readSteps(services, turn)).some(isRefused))
    raiseInvalid({
      code: 'INVALID_VALUE',
      path: 'generation_id',
      message: 'was refused by the vendor and has no facts',
    })
  return turn
}

/** Returns the principal of the handler: the caller, limited by the permissions of the rule's author. */
const testAuthority = ({ resource: { id, authority }, caller }: TestContext): PrincipalRecord =>
  narrowAuthority(principalRecord(caller), { id, author: authority })

const requestFacts = (context: TestContext, turn: GenerationRow): Promise<ExtractedFact[]> => {
  const { services, resource, request } = context
  const key = newId('req')
  return requestHandlerFacts(services, resource, turn, {
    authority: testAuthority(context),
    key,
    call: key,
    signal: request.closed,
  })
}

/** Runs the turn of a handler agent on a worker and returns its facts. */
async function runHandlerTurn(context: TestContext, turn: GenerationRow): Promise<ExtractedFact[]> {
  const { services, resource, request } = context
  const generation_id = newId(generationKind.prefix)
  const subscription = subscribeTurn(services, generation_id)
  try {
    const authority = testAuthority(context)
    await services.write(tx => createHandlerTurn(tx, services, resource, turn, { authority, generation_id }))
  } catch (error) {
    subscription.cancel()
    throw error
  }
  const ended = await subscription.wait({ closed: request.closed, after: 0 })
  if (!ended) throw handlerTimeout()
  if (ended.failure) raiseFailure(ended)
  const { output } = ended.result as { output: { content: string } | null }
  return requireFacts(factsOfText(output?.content ?? ''))
}

async function previewWrite({ services, resource: rule }: TestContext, turn: GenerationRow, fact: ExtractedFact) {
  const { content, tags } = fact
  try {
    const { entry } = await writeFact(services, factFromTurn(rule, turn, fact), { dryRun: true, admitted: true })
    const { action, similarity, memory_id, superseded_memory_id } = entry
    return { content, tags, action, similarity, memory_id, superseded_memory_id }
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return { content, tags, action: null, similarity: null, memory_id: null, superseded_memory_id: null }
  }
}
