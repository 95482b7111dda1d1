import type { SharedV4Warning } from '@ai-sdk/provider'
import { storableText, truncateChars } from '#core/base/storable-text.ts'
import type { VendorNote } from './model-messages.ts'

const MAX_WARNINGS = 20
const MAX_TEXT = 500

/** Names of settings in the package of a vendor, where they differ in more than their spelling. */
const SETTINGS: Record<string, string> = {
  maxOutputTokens: 'max_output_tokens',
  stopSequences: 'stop',
  reasoning: 'reasoning_effort',
  reasoningEffort: 'reasoning_effort',
}

const snakeCase = (name: string): string => name.replace(/[A-Z]/g, letter => `_${letter.toLowerCase()}`)

const settingOf = (feature: string): string => SETTINGS[feature] ?? snakeCase(truncateChars(feature, 64))

/** Returns what the package of a vendor says about a request as notes. */
export function warningNotes(warnings: readonly SharedV4Warning[] = []): VendorNote[] {
  const text = (message: string) => storableText(truncateChars(message, MAX_TEXT))
  return warnings.slice(0, MAX_WARNINGS).map((warning): VendorNote => {
    if (warning.type === 'other') return { kind: 'warning', message: text(warning.message) }
    if (warning.type === 'deprecated')
      return { kind: 'warning', message: text(`${warning.setting}: ${warning.message}`) }
    const { feature, details } = warning
    return warning.type === 'unsupported'
      ? {
          kind: 'setting_left_out',
          setting: settingOf(feature),
          message: text(details ?? 'not supported by the model'),
        }
      : { kind: 'setting_changed', setting: settingOf(feature), message: text(details ?? 'changed for the model') }
  })
}
