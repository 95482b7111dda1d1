import { deflateSync, inflateSync } from 'node:zlib'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import type { GenerationRow, TurnData } from '../model.ts'

type Owner = Pick<GenerationRow, 'id' | 'project_id'>

/** Binds sealed turn data to its turn. */
const sealOf = ({ id, project_id }: Owner) => ({ kind: 'generation_work', id, project_id })

/**
 * Sizes in bytes that are compressed, and the level: most of the data is conversation history. Less does not pay; more
 * would block the event loop.
 */
const COMPRESSED = { from: 1024, to: 256 * 1024, level: 1 }
/** First byte of JSON, which zlib data never has. */
const BRACE = 0x7b

/** Defaults, omitted from the stored form. */
const EMPTY: Omit<TurnData, 'depth'> = {
  messages: null,
  settled: [],
  system_extra: [],
  model: null,
  tool_context: null,
  guardrail_context: null,
  overrides: {},
  resumed: {},
  occupied: [],
  notes: {},
  shared_state: null,
  knowledge: null,
  context: null,
}

const isEmpty = (data: TurnData, name: keyof typeof EMPTY): boolean =>
  EMPTY[name] === null ? data[name] === null : Object.keys(data[name] as object).length === 0

/** Returns the stored form of turn data. */
export function sealTurnData(services: Services, turn: Owner, data: TurnData): string {
  const stored = { ...data } as Partial<TurnData>
  for (const name of Object.keys(EMPTY) as (keyof typeof EMPTY)[]) if (isEmpty(data, name)) delete stored[name]
  const text = JSON.stringify(stored)
  const { from, to, level } = COMPRESSED
  const size = Buffer.byteLength(text)
  const pays = size >= from && size <= to
  return services.secrets.seal(pays ? deflateSync(text, { level }) : text, sealOf(turn))
}

/** Returns turn data from its stored form; null if it cannot be decrypted. */
export function openTurnData(services: Services, turn: Owner, sealed: string): TurnData | null {
  const opened = services.secrets.openBytes(sealed, sealOf(turn))
  if (!opened.ok) return null
  const { value } = opened
  return { ...EMPTY, ...parseExactJson((value[0] === BRACE ? value : inflateSync(value)).toString('utf8')) }
}
