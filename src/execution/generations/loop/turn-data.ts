import { parseExactJson } from '#core/base/exact-json.ts'
import { injectedVersion } from '#core/base/fault-injection.ts'
import { knownFormat, withFormatVersion } from '#core/base/format-versions.ts'
import type { Services } from '#core/base/services.ts'
import { openText, sealText } from '#core/secrets/sealed-text.ts'
import type { GenerationRow, TurnData } from '../model.ts'

/** Version of the format of turn data. */
const VERSION = 1

const versionOf = (services: Services): number => injectedVersion(services, 'turn_data', VERSION)

type Owner = Pick<GenerationRow, 'id' | 'project_id'>

/** Binds sealed turn data to its turn. */
const sealOf = ({ id, project_id }: Owner) => ({ kind: 'generation_work', id, project_id })

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
  return sealText(services, JSON.stringify(withFormatVersion(stored, versionOf(services))), sealOf(turn))
}

/**
 * Returns turn data from its stored form; null if it cannot be decrypted.
 * @throws NewerFormatError
 */
export function openTurnData(services: Services, turn: Owner, sealed: string): TurnData | null {
  const text = openText(services, sealed, sealOf(turn))
  if (text === null) return null
  return { ...EMPTY, ...knownFormat(parseExactJson(text) as TurnData, versionOf(services), `Turn ${turn.id}`) }
}
