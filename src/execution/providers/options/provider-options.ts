import type { Problem } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { truncateChars } from '#core/base/storable-text.ts'
import { PROVIDER_TYPES, type ProviderRow, type ProviderType } from '../model.ts'
import type { VendorNote } from '../model-messages.ts'
import { nameDistance, type OptionProblem, type OptionSchema, plainName, readOption, suggestion } from './schema.ts'
import installed from './vendor-options.json' with { type: 'json' }

/** The APIs whose options differ. */
export type OptionApi = keyof typeof installed

const MAX_PROBLEMS = 20
const MAX_PATH = 128

/** The APIs of a provider type; `config.api` of the provider selects one. */
const APIS: Record<ProviderType, readonly OptionApi[]> = {
  openai: ['openai responses', 'openai chat'],
  azure: ['openai responses', 'openai chat'],
  anthropic: ['anthropic'],
  google: ['google'],
  vertex: ['google'],
  xai: ['xai'],
  groq: ['groq'],
  bedrock: ['bedrock'],
  ollama: ['compatible'],
  gateway: ['compatible'],
  custom: ['compatible'],
}

/** Returns the APIs of a provider type, the default first. */
export const optionApisOf = (type: ProviderType): readonly OptionApi[] => APIS[type]

/** Returns the API of a stored provider. */
export function optionApiOf({
  provider,
  base_url,
  config,
}: Pick<ProviderRow, 'provider' | 'base_url' | 'config'>): OptionApi {
  const [first, chat] = APIS[provider]
  const api = config?.api ?? (provider === 'openai' && base_url !== null ? 'chat' : 'responses')
  return chat && api === 'chat' ? chat : first
}

/** Fields of Converse requests, which the package passes on. */
const CONVERSE: Record<string, OptionSchema> = {
  guardrailConfig: { type: 'object', additionalProperties: true },
  performanceConfig: { type: 'object', additionalProperties: true },
  promptVariables: { type: 'object', additionalProperties: true },
  requestMetadata: { type: 'object', additionalProperties: { type: 'string' } },
  additionalModelResponseFieldPaths: { type: 'array', items: { type: 'string' } },
}

/** Fields of compatible requests that other settings decide. All further fields are passed on. */
const DECIDED = new Set(['__proto__', 'model', 'messages', 'tools', 'tool_choice', 'stream', 'stream_options'])

/** Returns the options that an API reads. */
export const optionsOf = (api: OptionApi): Record<string, OptionSchema> => ({
  ...(installed[api].properties as Record<string, OptionSchema>),
  ...(api === 'bedrock' && CONVERSE),
})

/** Options of vendors that the packages have in another place: of an object, its parts. */
const OPENAI_MOVES: Moves = {
  reasoning: {
    effort: 'reasoningEffort',
    summary: 'reasoningSummary',
    mode: 'reasoningMode',
    context: 'reasoningContext',
  },
  text: { verbosity: 'textVerbosity' },
  verbosity: 'textVerbosity',
  top_logprobs: 'logprobs',
}
type Moves = Record<string, string | Record<string, string>>

export const MOVES: Partial<Record<OptionApi, Moves>> = {
  'openai responses': OPENAI_MOVES,
  'openai chat': OPENAI_MOVES,
  anthropic: { output_config: { effort: 'effort', task_budget: 'taskBudget' }, betas: 'anthropicBeta' },
  google: {
    generation_config: {
      thinking_config: 'thinkingConfig',
      response_modalities: 'responseModalities',
      media_resolution: 'mediaResolution',
      image_config: 'imageConfig',
      audio_timestamp: 'audioTimestamp',
    },
  },
  xai: { reasoning: { effort: 'reasoningEffort', summary: 'reasoningSummary' } },
  bedrock: { thinking: 'reasoningConfig', output_config: { effort: 'reasoningConfig.maxReasoningEffort' } },
}

/** Other names of groups. */
export const GROUPS: Record<string, ProviderType> = {
  gemini: 'google',
  claude: 'anthropic',
  grok: 'xai',
  amazonBedrock: 'bedrock',
  amazon_bedrock: 'bedrock',
  googleVertex: 'vertex',
  google_vertex: 'vertex',
}

const typeOf = (group: string): ProviderType | undefined =>
  PROVIDER_TYPES.find(type => type === group) ?? (Object.hasOwn(GROUPS, group) ? GROUPS[group] : undefined)

/** An option of a group, and the path of the package's option that it sets. */
type Entry = { path: string; name: string; target: string | null; value: unknown; siblings?: readonly string[] }

/** Returns the key of a record with a name in any spelling. */
const keyOf = (record: object, name: string): string | undefined =>
  Object.keys(record).find(key => plainName(key) === plainName(name))

function entriesOf(api: OptionApi, group: Record<string, unknown>, path: string): Entry[] {
  const known = optionsOf(api)
  const moves = MOVES[api] ?? {}
  const entries = Object.entries(group).flatMap(([name, value]): Entry[] => {
    const at = `${path}.${name}`
    const own = Object.hasOwn(known, name) ? name : keyOf(known, name)
    if (own !== undefined) return [{ path: at, name, target: own, value }]
    const move = moves[keyOf(moves, name) ?? '']
    if (typeof move === 'object' && isObject(value))
      return Object.entries(value).map(([part, each]) => {
        const key = keyOf(move, part)
        const target = key === undefined ? null : move[key]
        return { path: `${at}.${part}`, name: part, target, value: each, siblings: Object.keys(move) }
      })
    return [{ path: at, name, target: typeof move === 'string' ? move : null, value }]
  })
  // The more specific `top_logprobs` replaces `logprobs`.
  return entries.sort((a, b) => Number(isMoved(a)) - Number(isMoved(b)))
}

const isMoved = ({ name, target }: Entry): boolean => target !== null && plainName(target) !== plainName(name)

/** Returns the schema at a path of an API's options; undefined if it has none. */
function schemaAt(api: OptionApi, target: string): OptionSchema | undefined {
  const [first, ...rest] = target.split('.')
  return rest.reduce<OptionSchema | undefined>((schema, name) => schema?.properties?.[name], optionsOf(api)[first])
}

const isPassedOn = (api: OptionApi, { name, target }: Entry): boolean =>
  api === 'compatible' && target === null && !DECIDED.has(name)

function readEntry(api: OptionApi, entry: Entry): { value: unknown; problems: OptionProblem[] } {
  const { path, name, target, value, siblings } = entry
  if (isPassedOn(api, entry)) return { value, problems: [] }
  const schema = target === null ? undefined : schemaAt(api, target)
  if (schema) return readOption(schema, value, path)
  const isDecided = api === 'compatible' && DECIDED.has(name)
  const unknown = () =>
    isDecided
      ? ': another setting decides it'
      : siblings
        ? suggestion(path, {}, siblings)
        : suggestion(path, optionsOf(api), Object.keys(MOVES[api] ?? {}))
  return { value: undefined, problems: [{ path, message: 'is not an option', unknown }] }
}

/** Sets the value at a path. */
function setAt(options: Record<string, unknown>, target: string, value: unknown): void {
  const [first, rest] = target.split('.')
  if (rest === undefined)
    options[first] = isObject(options[first]) && isObject(value) ? { ...options[first], ...value } : value
  else options[first] = { ...(isObject(options[first]) ? options[first] : {}), [rest]: value }
}

/** Returns the group of a provider type, by any of its names. */
function groupOf(
  type: ProviderType,
  all: Record<string, unknown>,
): { name: string; group: Record<string, unknown> } | null {
  const name = Object.hasOwn(all, type) ? type : Object.keys(all).find(each => typeOf(each) === type)
  const group = name === undefined ? null : all[name]
  return name !== undefined && isObject(group) ? { name, group } : null
}

/**
 * Returns the options of a provider type as its package reads them. Options stored before the check at write are left out with a
 * note if no package reads them or if their values are invalid.
 */
export function sentOptions(
  type: ProviderType,
  api: OptionApi,
  all: Record<string, unknown> | null | undefined,
): { options: Record<string, unknown>; notes: VendorNote[] } {
  const found = all ? groupOf(type, all) : null
  if (!found) return { options: {}, notes: [] }
  const options: Record<string, unknown> = {}
  const problems: OptionProblem[] = []
  for (const entry of entriesOf(api, found.group, found.name)) {
    const reading = readEntry(api, entry)
    problems.push(...reading.problems)
    const isValid = reading.problems.every(({ unknown, path }) => unknown && path !== entry.path)
    if (isPassedOn(api, entry)) options[entry.name] = reading.value
    else if (isValid && entry.target !== null) setAt(options, entry.target, reading.value)
  }
  const notes = problems.slice(0, MAX_PROBLEMS).map(
    ({ path, message }): VendorNote => ({
      kind: 'setting_left_out',
      setting: truncateChars(path, MAX_PATH),
      message,
    }),
  )
  return { options, notes }
}

/** Returns the problems of options by provider type, at most 20: groups, options and values that nothing reads. */
export function providerOptionProblems(all: Record<string, unknown>): Problem[] {
  const seen = new Set<ProviderType>()
  const problems: Problem[] = []
  for (const [name, group] of Object.entries(all)) {
    if (problems.length >= MAX_PROBLEMS) break
    const path = `provider_options.${name}`
    const type = typeOf(name)
    if (type === undefined)
      problems.push({ code: 'UNKNOWN_PROPERTY', path, message: `is not a provider type${nearestGroup(name)}` })
    else if (seen.has(type)) problems.push({ code: 'INVALID_VALUE', path, message: `repeats the options of ${type}` })
    else if (isObject(group)) problems.push(...groupProblems(type, group, path, MAX_PROBLEMS - problems.length))
    if (type !== undefined) seen.add(type)
  }
  return problems
}

/** Returns the problems of options that another one sets too. `top_logprobs` is allowed with `logprobs`. */
function repeatedOptions(entries: readonly Entry[]): OptionProblem[] {
  const seen = new Map<string, Entry>()
  return entries.flatMap(entry => {
    const { path, name, target } = entry
    if (target === null || plainName(name) === 'toplogprobs') return []
    const first = seen.get(target)
    if (first === undefined) seen.set(target, entry)
    return first === undefined ? [] : [{ path, message: `repeats ${first.path}` }]
  })
}

/** An option that one of the APIs takes is valid: the provider, and with it the API, may change. */
function groupProblems(type: ProviderType, group: Record<string, unknown>, path: string, limit: number): Problem[] {
  const problems: OptionProblem[] = []
  const isUnknown = (each: OptionProblem[]) => each.some(({ unknown }) => unknown)
  for (const name of Object.keys(group)) {
    if (problems.length >= limit) break
    const readings = APIS[type].map(api =>
      entriesOf(api, { [name]: group[name] }, path).flatMap(entry => readEntry(api, entry).problems),
    )
    const least = readings.reduce((best, each) =>
      each.length === 0 || (best.length > 0 && isUnknown(best) && !isUnknown(each)) ? each : best,
    )
    problems.push(...least.slice(0, limit))
  }
  if (problems.length === 0) problems.push(...repeatedOptions(entriesOf(APIS[type][0], group, path)))
  return problems
    .slice(0, limit)
    .map(({ path: at, message, unknown }) =>
      unknown
        ? { code: 'UNKNOWN_PROPERTY', path: at, message: `${message} of ${type} providers${unknown()}` }
        : { code: 'INVALID_VALUE', path: at, message },
    )
}

function nearestGroup(name: string): string {
  const names = [...PROVIDER_TYPES, ...Object.keys(GROUPS)]
  const nearest = names.find(each => nameDistance(plainName(name), plainName(each)) <= 2)
  return nearest === undefined ? `; it is one of ${PROVIDER_TYPES.join(', ')}` : `; did you mean ${nearest}?`
}
