import { ActionIcon, Button, Card, Group, Input, Stack, Text } from '@mantine/core'
import { IconArrowDown, IconArrowUp, IconPlus, IconTrash } from '@tabler/icons-react'
import { type ReactNode, type RefObject, useRef } from 'react'
import * as strings from '#strings.ts'

const texts = strings.entries

/** Changes fields of an entry. */
export type ChangeEntry<Entry> = (change: Partial<Entry>) => void

type EntryListProps<Entry> = {
  label: string
  description?: string
  /** What an entry is. */
  one: string
  entries: Entry[]
  onChange: (entries: Entry[]) => void
  /** Returns an empty entry. */
  blank: () => Entry
  /** The smallest and the largest number of entries. */
  limits: readonly [least: number, most: number]
  /** Whether the fields of an entry are one line. */
  isCompact?: boolean
  children: (entry: Entry, change: ChangeEntry<Entry>) => ReactNode
}

/** Edits the entries of a list in their order: each has its fields, and buttons that move and remove it. */
export function EntryList<Entry extends object>(props: EntryListProps<Entry>) {
  const { label, description, one, entries, onChange, blank, limits } = props
  const add = useRef<HTMLButtonElement>(null)
  return (
    <Stack gap="sm" role="group" aria-label={label}>
      <div>
        <Input.Label component="div">{label}</Input.Label>
        {description && <Input.Description>{description}</Input.Description>}
      </div>
      {entries.map((entry, index) => (
        <EntryFields key={index} {...props} entry={entry} index={index} add={add} />
      ))}
      <Group>
        <Button
          ref={add}
          variant="default"
          size="xs"
          leftSection={<IconPlus size={14} />}
          disabled={entries.length >= limits[1]}
          onClick={() => onChange([...entries, blank()])}
        >
          {texts.add(one)}
        </Button>
      </Group>
    </Stack>
  )
}

function EntryFields<Entry extends object>({
  one,
  entries,
  onChange,
  limits: [least],
  isCompact = false,
  children,
  entry,
  index,
  add,
}: EntryListProps<Entry> & {
  entry: Entry
  index: number
  /** The button that adds an entry. */
  add: RefObject<HTMLButtonElement | null>
}) {
  const name = texts.numbered(one, index + 1)
  const without = entries.toSpliced(index, 1)
  const move = (to: number) => onChange(without.toSpliced(to, 0, entry))
  const fields = children(entry, change => onChange(entries.with(index, { ...entry, ...change })))
  const buttons = (
    <Group gap={4} wrap="nowrap">
      <ActionIcon aria-label={texts.up(name)} disabled={index === 0} onClick={() => move(index - 1)}>
        <IconArrowUp size={16} />
      </ActionIcon>
      <ActionIcon aria-label={texts.down(name)} disabled={index === entries.length - 1} onClick={() => move(index + 1)}>
        <IconArrowDown size={16} />
      </ActionIcon>
      <ActionIcon
        aria-label={texts.remove(name)}
        disabled={entries.length <= least}
        onClick={() => {
          onChange(without)
          // The focus is not lost with the button.
          add.current?.focus()
        }}
      >
        <IconTrash size={16} />
      </ActionIcon>
    </Group>
  )
  if (isCompact)
    return (
      <Group role="group" aria-label={name} gap="sm" align="flex-start">
        <Group gap="sm" flex={1} align="flex-start" miw={180}>
          {fields}
        </Group>
        {buttons}
      </Group>
    )
  return (
    <Card role="group" aria-label={name} withBorder padding="md" radius="md">
      <Stack gap="sm">
        <Group justify="space-between" gap="sm">
          <Text fw={600}>{name}</Text>
          {buttons}
        </Group>
        {fields}
      </Stack>
    </Card>
  )
}
