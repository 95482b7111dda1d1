import type { Services } from '#core/base/services.ts'
import type { VendorNote } from './model-messages.ts'

const MAX_NAMES = 20

/** Returns the settings of calls that their vendors or packages ignored. */
export const ignoredSettings = (calls: readonly { notes?: readonly VendorNote[] | null }[]): string[] => [
  ...new Set(
    calls.flatMap(({ notes }) => (notes ?? []).flatMap(note => (note.kind === 'setting_left_out' ? note.setting : []))),
  ),
]

/** Returns the header that names ignored parameters of a request; none without any. Names that it cannot contain are omitted. */
export function ignoredParamsHeader({ config }: Services, names: readonly string[] = []): Record<string, string> {
  const shown = [...new Set(names)].filter(name => /^[\w.-]{1,64}$/.test(name)).slice(0, MAX_NAMES)
  return shown.length > 0 ? { [`${config.HEADER_PREFIX}Ignored-Params`]: shown.join(', ') } : {}
}
