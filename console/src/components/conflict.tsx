import { Button, Group, Modal, SimpleGrid, Stack, Text } from '@mantine/core'
import * as strings from '#strings.ts'
import { Value } from './value.tsx'

/** Shows what another person has saved meanwhile next to the own change, and offers both. */
export function Conflict({
  title,
  theirs,
  yours,
  onClose,
  onOverwrite,
  onTake,
}: {
  title: string
  /** What both have changed; null closes the dialog. */
  theirs: unknown
  yours: unknown
  onClose: () => void
  onOverwrite: () => void
  onTake: () => void
}) {
  return (
    <Modal opened={theirs !== null} onClose={onClose} title={title} size="xl">
      {theirs !== null && (
        <Stack gap="md">
          <Text c="dimmed">{strings.agents.changedText}</Text>
          <SimpleGrid cols={{ base: 1, sm: 2 }}>
            <Stack gap={4}>
              <Text fw={600}>{strings.agents.theirs}</Text>
              <Value value={theirs} label={strings.agents.theirs} />
            </Stack>
            <Stack gap={4}>
              <Text fw={600}>{strings.agents.yours}</Text>
              <Value value={yours} label={strings.agents.yours} />
            </Stack>
          </SimpleGrid>
          <Group>
            <Button onClick={onOverwrite}>{strings.agents.overwrite}</Button>
            <Button variant="default" onClick={onTake}>
              {strings.agents.takeTheirs}
            </Button>
          </Group>
        </Stack>
      )}
    </Modal>
  )
}
