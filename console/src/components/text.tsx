import { Code, CopyButton, Group, ScrollArea, Text, UnstyledButton } from '@mantine/core'
import { useState } from 'react'
import { strings } from '../strings.ts'

/** Characters without width, or that change the direction of others: they could hide what a text says. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what it finds
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g

/** Returns a text with hidden characters made visible. */
export const visible = (text: string): string =>
  text.replace(HIDDEN, character => `⟨U+${character.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`)

/** Size above which a value is folded, and the part that is shown. */
const FOLD_ABOVE = 16 * 1024
const FOLDED = 2 * 1024
const SHOWN_MAX = 5 * 1024 * 1024

const describe = (value: unknown, length: number): string => {
  const kilobytes = `${Math.ceil(length / 1024).toLocaleString()} KB`
  if (Array.isArray(value)) return `${value.length.toLocaleString()} items, ${kilobytes}`
  if (typeof value === 'object' && value !== null)
    return `${Object.keys(value).length.toLocaleString()} keys, ${kilobytes}`
  return kilobytes
}

/** A text or JSON value of any size: a large one is folded until it is opened. */
export function Value({ value, label }: { value: unknown; label: string }) {
  const [isOpen, setOpen] = useState(false)
  const text = typeof value === 'string' ? value : JSON.stringify(value, null, 2)
  const isLarge = text.length > FOLD_ABOVE
  const shown = visible(!isLarge ? text : text.slice(0, isOpen ? SHOWN_MAX : FOLDED))
  return (
    <>
      <ScrollArea.Autosize mah={420} type="auto" viewportProps={{ tabIndex: 0, role: 'region', 'aria-label': label }}>
        <Code block className="wrap">
          {shown}
        </Code>
      </ScrollArea.Autosize>
      {isLarge && (
        <Group gap="sm" mt={4}>
          <Text size="sm" c="dimmed">
            {describe(value, text.length)}
          </Text>
          <TextButton onClick={() => setOpen(!isOpen)}>{isOpen ? strings.less : strings.more}</TextButton>
          <CopyText text={text} />
        </Group>
      )}
    </>
  )
}

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

/** Returns a duration for people. */
export const durationText = (ms: number): string =>
  ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`

/** Returns a cost for people. */
export const costText = (usd: number | null | undefined): string =>
  usd == null
    ? strings.playground.unpriced
    : usd.toLocaleString(undefined, { style: 'currency', currency: 'USD', maximumSignificantDigits: 3 })
