import { Box, Button, Code, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { IconChevronDown, IconDownload, IconSearch } from '@tabler/icons-react'
import { useVirtualizer } from '@tanstack/react-virtual'
import { useMemo, useRef, useState } from 'react'
import * as strings from '#strings.ts'
import { saveAs } from './save.ts'
import { visible } from './text.tsx'

const LINE_PX = 20
/** Longest line that is drawn: a longer one is cut into several. */
const LINE_CHARACTERS = 400
/** Most that is shown in the page; the rest is in the download. */
const SHOWN_MAX = 5 * 1024 * 1024

/** Returns the lines of a text, long ones cut. */
function linesOf(text: string): string[] {
  const lines: string[] = []
  for (const line of text.slice(0, SHOWN_MAX).split('\n')) {
    if (line.length === 0) lines.push('')
    for (let at = 0; at < line.length; at += LINE_CHARACTERS) lines.push(line.slice(at, at + LINE_CHARACTERS))
  }
  return lines
}

/** A large text in a dialog. */
export default function Viewer({ text, label, onClose }: { text: string; label: string; onClose: () => void }) {
  return (
    <Modal opened onClose={onClose} title={label} size="90%">
      <Lines text={text} label={label} />
    </Modal>
  )
}

/** The lines in view of a text. A separate component: its frame does not exist before the content of the dialog. */
function Lines({ text, label }: { text: string; label: string }) {
  const lines = useMemo(() => linesOf(text), [text])
  const [search, setSearch] = useState('')
  const [found, setFound] = useState<number | null>(null)
  const scroll = useRef<HTMLDivElement>(null)
  const rows = useVirtualizer({
    count: lines.length,
    getScrollElement: () => scroll.current,
    estimateSize: () => LINE_PX,
    overscan: 20,
  })
  const find = () => {
    const wanted = search.toLowerCase()
    const from = found === null ? 0 : found + 1
    const order = [...lines.keys()].slice(from).concat([...lines.keys()].slice(0, from))
    const at = wanted ? (order.find(index => lines[index].toLowerCase().includes(wanted)) ?? null) : null
    setFound(at)
    if (at !== null) rows.scrollToIndex(at, { align: 'center' })
  }
  return (
    <Stack gap="sm">
      <form
        onSubmit={event => {
          event.preventDefault()
          find()
        }}
      >
        <Group gap="sm">
          <TextInput
            aria-label={strings.value.search}
            placeholder={strings.value.search}
            leftSection={<IconSearch size={16} />}
            value={search}
            onChange={event => {
              setSearch(event.currentTarget.value)
              setFound(null)
            }}
            flex="1 1 200px"
            data-autofocus
          />
          <Button type="submit" variant="default" leftSection={<IconChevronDown size={16} />}>
            {strings.value.next}
          </Button>
          <Button
            variant="default"
            leftSection={<IconDownload size={16} />}
            onClick={() => saveAs([text], strings.value.file)}
          >
            {strings.value.download}
          </Button>
        </Group>
      </form>
      <Text size="sm" c="dimmed" role="status">
        {search && found !== null && strings.value.found(found + 1)}
        {text.length > SHOWN_MAX && strings.value.cut}
      </Text>
      <Box ref={scroll} h="60vh" style={{ overflow: 'auto' }} tabIndex={0} role="region" aria-label={label}>
        <Box h={rows.getTotalSize()} pos="relative">
          {rows.getVirtualItems().map(({ index, start, key }) => (
            <Code
              key={key}
              pos="absolute"
              top={start}
              h={LINE_PX}
              bg={index === found ? undefined : 'transparent'}
              style={{ whiteSpace: 'pre', left: 0 }}
            >
              {visible(lines[index])}
            </Code>
          ))}
        </Box>
      </Box>
    </Stack>
  )
}
