import type { z } from 'zod'
import { AppError, raise, raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { narrowAuthority, reachOf } from '../../core/iam/authority.ts'
import { type PrincipalRecord, principalRecord } from '../../core/iam/caller.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import { writeFact } from '../../memory/entries/write.ts'
import { canReachMemory } from '../../memory/reach.ts'
import { actorOfTurn } from '../generations/loop/acting-caller.ts'
import { type GenerationRow, generationKind } from '../generations/model.ts'
import { raiseFailure, subscribeTurn } from '../generations/request/wait-for-turn.ts'
import { allowHandler } from './check.ts'
import { handlerTimeout } from './extract.ts'
import { factFromTurn } from './fact-provenance.ts'
import { type ExtractedFact, factsOfText } from './facts.ts'
import { createHandlerTurn, requestHandlerFacts } from './handler-turn.ts'
import type { MemoryRuleRow, RuleTest, RuleTestInput } from './model.ts'

type Testing = Context<Record<string, never>, z.output<typeof RuleTestInput>, MemoryRuleRow>

/**
 * What a rule would make of a past turn: its handler is asked as the caller, and each fact goes through the decision of a
 * write without being written.
 * @throws GENERATION_NOT_FOUND, GENERATION_CONTENT_UNAVAILABLE, VALIDATION_FAILED for a turn that has not completed, what the
 *   handler fails with
 */
export async function testRule(context: Testing): Promise<z.output<typeof RuleTest>> {
  const { services, resource: rule, body } = context
  const turn = await readableTurn(context, body.generation_id)
  await requireUnpaused(services.pool, rule.project_id)
  allowHandler(context, rule)
  const facts = rule.agent_id === null ? await asked(context, turn) : await answered(context, turn)
  return { facts: await Promise.all(facts.map(fact => wouldWrite(context, turn, fact))) }
}

/** A completed turn of the project that the caller may read. */
async function readableTurn({ services, resource: rule, allow, caller }: Testing, id: string): Promise<GenerationRow> {
  const turn = isIdOf(generationKind, id) ? await generationKind.find(services.pool, id) : null
  if (turn?.project_id !== rule.project_id) return raise('GENERATION_NOT_FOUND', { meta: { id } })
  // What the rule makes of it is of the end user whose turn it is.
  if (!canReachMemory(reachOf(caller), { actor_id: actorOfTurn(turn) }))
    return raise('GENERATION_NOT_FOUND', { meta: { id } })
  allow('generations:GetGeneration', { kind: generationKind, row: turn })
  if (turn.status !== 'completed')
    raiseInvalid({ code: 'INVALID_VALUE', path: 'generation_id', message: 'names a turn that has not completed' })
  if (turn.content_redacted_at !== null) raise('GENERATION_CONTENT_UNAVAILABLE', { meta: { generation_id: id } })
  return turn
}

/** The handler is asked as the caller, within the rights of who wrote the rule. */
const authorityOf = ({ resource: { id, authority }, caller }: Testing): PrincipalRecord =>
  narrowAuthority(principalRecord(caller), { id, author: authority })

const asked = (testing: Testing, turn: GenerationRow): Promise<ExtractedFact[]> => {
  const { services, resource, request } = testing
  const key = newId('req')
  return requestHandlerFacts(services, resource, turn, {
    authority: authorityOf(testing),
    key,
    call: key,
    signal: request.closed,
  })
}

/** The facts of a handler agent, whose turn a worker runs. */
async function answered(testing: Testing, turn: GenerationRow): Promise<ExtractedFact[]> {
  const { services, resource, request } = testing
  const generation_id = newId(generationKind.prefix)
  const expected = subscribeTurn(services, generation_id)
  try {
    const authority = authorityOf(testing)
    await services.write(tx => createHandlerTurn(tx, services, resource, turn, { authority, generation_id }))
  } catch (error) {
    expected.cancel()
    throw error
  }
  const ended = await expected.wait({ closed: request.closed, running: true })
  if (!ended) throw handlerTimeout()
  if (ended.failure) raiseFailure(ended)
  const { output } = ended.result as { output: { content: string } | null }
  return factsOfText(output?.content ?? '')
}

async function wouldWrite({ services, resource: rule }: Testing, turn: GenerationRow, fact: ExtractedFact) {
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
