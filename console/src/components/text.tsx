import { CopyButton, Text, UnstyledButton } from '@mantine/core'
import * as strings from '#strings.ts'
import { visible } from './untrusted.ts'

export { visible }

/** An action in a line of text. */
export function TextButton({ children, onClick }: { children: string; onClick: () => void }) {
  return (
    <UnstyledButton onClick={onClick} mih={24}>
      <Text size="sm" td="underline" component="span">
        {children}
      </Text>
    </UnstyledButton>
  )
}

/** Copies a text. */
export function CopyText({ text, label = strings.copy }: { text: string; label?: string }) {
  return (
    <CopyButton value={text}>
      {({ copied, copy }) => <TextButton onClick={copy}>{copied ? strings.copied : label}</TextButton>}
    </CopyButton>
  )
}

const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: 'auto' })
const EXACT = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
const UNITS = [
  ['day', 86_400],
  ['hour', 3600],
  ['minute', 60],
] as const

/** A time, relative to now; its exact value is the title. */
export function When({ at }: { at: string | null | undefined }) {
  if (!at) return <>{strings.none}</>
  const seconds = (Date.parse(at) - Date.now()) / 1000
  const unit = UNITS.find(([, length]) => Math.abs(seconds) >= length)
  return (
    <time dateTime={at} title={EXACT.format(new Date(at))}>
      {unit ? RELATIVE.format(Math.round(seconds / unit[1]), unit[0]) : strings.when.now}
    </time>
  )
}

/** Returns an age in seconds for people, in its largest unit, as 3 days or 3d. */
export function elapsedText(seconds: number, unitDisplay: 'long' | 'narrow' = 'long'): string {
  const [unit, length] = UNITS.find(([, length]) => seconds >= length) ?? ['second', 1]
  const count = Math.max(0, Math.floor(seconds / length))
  return count.toLocaleString(undefined, { style: 'unit', unit, unitDisplay })
}

/** Returns the age of something, as 3d. */
export const ageText = (at: string): string => elapsedText((Date.now() - Date.parse(at)) / 1000, 'narrow')

/** Returns a duration for people. */
export const durationText = (ms: number): string =>
  ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`

/** Returns a cost for people. */
export const costText = (usd: number | null | undefined): string =>
  usd == null
    ? strings.playground.unpriced
    : usd.toLocaleString(undefined, { style: 'currency', currency: 'USD', maximumSignificantDigits: 3 })

const SIZE_UNITS = ['B', 'KB', 'MB', 'GB', 'TB']

/** Returns a size in bytes for people. */
export function sizeText(bytes: number): string {
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), SIZE_UNITS.length - 1)
  const amount = bytes / 1024 ** power
  return `${amount.toLocaleString(undefined, { maximumFractionDigits: amount < 10 ? 1 : 0 })} ${SIZE_UNITS[power]}`
}
