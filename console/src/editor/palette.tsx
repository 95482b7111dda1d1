import { Group, Select, Stack, Text, UnstyledButton } from '@mantine/core'
import { visible } from '#components/text.tsx'
import { NodeTypeIcon } from '#graph/node-type.tsx'
import * as strings from '#strings.ts'
import type { PaletteEntry } from './kind.ts'

const texts = strings.editor

/** Type of the data of a dragged entry. */
export const DRAGGED = 'application/x-muster-node'

/** What can be added: by click, by keyboard, or dragged to the graph. */
export function Palette({
  entries,
  nodes,
  after,
  onAfter,
  onAdd,
}: {
  entries: readonly PaletteEntry[]
  /** Names of the nodes. */
  nodes: string[]
  /** Node from which an edge leads to the added node. */
  after: string | null
  onAfter: (after: string | null) => void
  onAdd: (entry: PaletteEntry) => void
}) {
  return (
    <Stack gap="sm">
      {nodes.length > 0 && (
        <Select
          label={texts.after}
          description={texts.afterHelp}
          data={nodes.map(value => ({ value, label: visible(value) }))}
          value={after}
          onChange={onAfter}
          searchable
          clearable
          clearButtonProps={{ 'aria-label': strings.form.clear(texts.after) }}
          limit={100}
        />
      )}
      <Stack gap={4} role="group" aria-label={texts.palette}>
        {entries.map(entry => (
          <UnstyledButton
            key={entry.type}
            className="palette-entry"
            px="sm"
            py={6}
            draggable
            onDragStart={event => {
              event.dataTransfer.setData(DRAGGED, entry.type)
              event.dataTransfer.effectAllowed = 'copy'
            }}
            onClick={() => onAdd(entry)}
          >
            <Group gap="sm" wrap="nowrap">
              <NodeTypeIcon type={entry.type} />
              <div>
                <Text size="sm" fw={600}>
                  {entry.name}
                </Text>
                <Text size="xs" c="dimmed">
                  {entry.about}
                </Text>
              </div>
            </Group>
          </UnstyledButton>
        ))}
      </Stack>
    </Stack>
  )
}
