import { randomUUID } from 'node:crypto'
import { estimatedTokens, recordUsageLater, type UsageDraft } from '../../control/usage/meter.ts'
import type { Services } from '../../core/process/services.ts'
import type { EmbeddingModel, EmbedOptions } from './model.ts'

/** A text of a call, and on whose account it is there. */
type Metered = { text: string; options: Pick<EmbedOptions, 'project_id' | 'purpose'> }

/**
 * Meters one call of the provider. Usage never fails the work.
 * @param tokens as the provider reported them; null when it did not
 */
export function meterEmbeddingCall(
  services: Services,
  model: EmbeddingModel,
  texts: readonly Metered[],
  tokens: number | null,
): void {
  recordUsageLater(services, usageOf(texts, tokens, model))
}

const charactersOf = (texts: readonly Metered[]): number => texts.reduce((sum, { text }) => sum + text.length, 0)

/**
 * What a call is metered as, one draft a project: its share by characters of the tokens reported, or a quarter of its
 * characters. The last part of the key is the call's own: the same row may be embedded again, and is paid for again.
 */
function usageOf(
  texts: readonly Metered[],
  tokens: number | null,
  { provider, model }: Pick<EmbeddingModel, 'provider' | 'model'>,
): UsageDraft[] {
  const call = randomUUID()
  const total = charactersOf(texts)
  let before = 0
  const drafts: UsageDraft[] = []
  for (const [project_id, mine] of Map.groupBy(texts, ({ options }) => options.project_id)) {
    const characters = charactersOf(mine)
    // Cut at rounded borders, so that the shares add up to the whole.
    const border = (at: number) => Math.round(((tokens ?? 0) * at) / Math.max(1, total))
    const quantity = tokens === null ? estimatedTokens(characters) : border(before + characters) - border(before)
    before += characters
    if (project_id === null) continue
    const { kind, ref } = mine[0].options.purpose
    drafts.push({
      idempotency_key: `embed:${kind}:${ref}:${call}`,
      project_id,
      meter_type: 'llm_tokens',
      provider,
      model,
      source: 'embedding',
      components: [{ component: 'input_tokens', quantity, unit: 'token', billable: true }],
    })
  }
  return drafts
}
