import { MODEL_INPUTS, type ModelInput, type ProviderRow, type ProviderType } from './model.ts'

/** Inputs of known models by the names that their vendors give them; the first match holds. */
const TEXT: readonly ModelInput[] = ['text']
const IMAGES: readonly ModelInput[] = ['text', 'image']
const PAGES: readonly ModelInput[] = ['text', 'image', 'pdf']

const KNOWN: readonly (readonly [RegExp, readonly ModelInput[]])[] = [
  [/^gpt-3\.5|^gpt-4(-\d{4}|-32k)?$|^o1-(mini|preview)|^o3-mini/, TEXT],
  [/^gpt-4o(-mini)?-audio|^gpt-audio/, ['text', 'audio']],
  [/^gpt-4-turbo/, IMAGES],
  [/^gpt-4o|^gpt-4\.1|^gpt-5|^o1|^o3|^o4-mini/, PAGES],
  [/^claude-(2|instant)/, TEXT],
  [/^claude-/, PAGES],
  [/^gemini-/, MODEL_INPUTS],
  [/^grok-4|^grok-.*vision/, IMAGES],
  [/^grok-[23]/, TEXT],
  [/^llama-?4|^llama-3\.2-(11|90)b-vision/, IMAGES],
  [/^llama-?3|^mixtral|^deepseek-(chat|reasoner|v3|r1)/, TEXT],
]

/** Types whose models have the names of the table, after an optional vendor prefix. */
const NAMED = new Set<ProviderType>([
  'openai',
  'anthropic',
  'google',
  'xai',
  'groq',
  'azure',
  'bedrock',
  'vertex',
  'gateway',
])

/**
 * Returns the inputs that a model takes: as declared in `models` of the provider's config, else as in the table,
 * else null: unknown, so that every input is tried.
 */
export function modelInputs(
  { provider, config }: Pick<ProviderRow, 'provider' | 'config'>,
  model: string,
): ReadonlySet<ModelInput> | null {
  const declared = (config?.models as Record<string, { input?: ModelInput[] }> | null | undefined)?.[model]?.input
  if (declared) return new Set(declared)
  if (!NAMED.has(provider)) return null
  // A deployment of azure has any name; the config names its model.
  const named = provider === 'azure' && typeof config?.model === 'string' ? config.model : model
  // `anthropic/claude-…` of gateways, `us.anthropic.claude-…` of bedrock.
  const name = named
    .toLowerCase()
    .replace(/^.*[/]/, '')
    .replace(/^([a-z]{2}\.)?(anthropic|meta)\./, '')
  const known = KNOWN.find(([pattern]) => pattern.test(name))
  return known ? new Set(known[1]) : null
}
