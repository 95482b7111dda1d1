import { deflateSync, inflateSync } from 'node:zlib'
import type { Services } from '../../../core/process/services.ts'
import type { GenerationRow, TurnData } from '../model.ts'

type Owner = Pick<GenerationRow, 'id' | 'project_id'>

/** What binds a sealed working state to its turn. */
const sealOf = ({ id, project_id }: Owner) => ({ kind: 'generation_work', id, project_id })

/**
 * What is compressed: a conversation's history is most of what its turns write. Less does not pay, and more would hold up
 * the process.
 */
const COMPRESSED = { from: 1024, to: 256 * 1024, level: 1 }
/** First byte of JSON; zlib's is another. */
const BRACE = 0x7b

/** What is left out where a turn has nothing else. */
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
  knowledge: null,
}

const isEmpty = (work: TurnData, name: keyof typeof EMPTY): boolean =>
  EMPTY[name] === null ? work[name] === null : Object.keys(work[name] as object).length === 0

/** The working state of a turn as the database has it. */
export function sealTurnData(services: Services, turn: Owner, work: TurnData): string {
  const left = { ...work } as Partial<TurnData>
  for (const name of Object.keys(EMPTY) as (keyof typeof EMPTY)[]) if (isEmpty(work, name)) delete left[name]
  const text = JSON.stringify(left)
  const { from, to, level } = COMPRESSED
  const size = Buffer.byteLength(text)
  const pays = size >= from && size <= to
  return services.secrets.seal(pays ? deflateSync(text, { level }) : text, sealOf(turn))
}

/** The working state again; null when it cannot be decrypted. */
export function openTurnData(services: Services, turn: Owner, sealed: string): TurnData | null {
  const opened = services.secrets.openBytes(sealed, sealOf(turn))
  if (!opened.ok) return null
  const { value } = opened
  return { ...EMPTY, ...JSON.parse((value[0] === BRACE ? value : inflateSync(value)).toString('utf8')) }
}
