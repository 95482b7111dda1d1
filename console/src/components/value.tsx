import { Code, Group, ScrollArea, Text } from '@mantine/core'
import { Suspense, useMemo, useState } from 'react'
import * as strings from '#strings.ts'
import { onDemand } from './on-demand.tsx'
import { saveAs } from './save.ts'
import { CopyText, sizeText, TextButton, visible } from './text.tsx'

/** Size above which a value is folded, and the part that is shown. */
const FOLD_ABOVE = 16 * 1024
const FOLDED = 2 * 1024

const Viewer = onDemand(async () => (await import('./viewer.tsx')).default)

/** The size and shape of a value. */
const describe = (value: unknown, length: number): string => {
  const size = sizeText(length)
  if (Array.isArray(value)) return `${value.length.toLocaleString()} items, ${size}`
  if (typeof value === 'object' && value !== null) return `${Object.keys(value).length.toLocaleString()} keys, ${size}`
  return size
}

/** A text or JSON value of any size: a large one is folded, and opens in a dialog. */
export function Value({ value, label }: { value: unknown; label: string }) {
  const [isOpen, setOpen] = useState(false)
  const text = useMemo(
    () => (typeof value === 'string' ? value : (JSON.stringify(value, null, 2) ?? strings.none)),
    [value],
  )
  const isLarge = text.length > FOLD_ABOVE
  return (
    <>
      <ScrollArea.Autosize mah={420} type="auto" viewportProps={{ tabIndex: 0, role: 'region', 'aria-label': label }}>
        <Code block className="wrap">
          {visible(isLarge ? text.slice(0, FOLDED) : text)}
        </Code>
      </ScrollArea.Autosize>
      {isLarge && (
        <Group gap="sm" mt={4}>
          <Text size="sm" c="dimmed">
            {describe(value, text.length)}
          </Text>
          <TextButton onClick={() => setOpen(true)}>{strings.value.open}</TextButton>
          <CopyText text={text} />
          <TextButton onClick={() => saveAs([text], strings.value.file)}>{strings.value.download}</TextButton>
        </Group>
      )}
      {isOpen && (
        <Suspense>
          <Viewer text={text} label={label} onClose={() => setOpen(false)} />
        </Suspense>
      )}
    </>
  )
}
