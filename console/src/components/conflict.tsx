import { Button, Group, Modal, SimpleGrid, Stack, Text } from '@mantine/core'
import { strings } from '../strings.ts'
import { Value } from './value.tsx'

/** Shows two changes of one record, of which the other was saved first, and asks which is to hold. */
export function ConflictModal({
  title,
  theirs,
  yours,
  onOverwrite,
  onTakeTheirs,
  onClose,
}: {
  title: string
  theirs: unknown
  yours: unknown
  onOverwrite: () => void
  onTakeTheirs: () => void
  onClose: () => void
}) {
  return (
    <Modal opened onClose={onClose} title={title} size="xl">
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
          <Button variant="default" onClick={onTakeTheirs}>
            {strings.agents.takeTheirs}
          </Button>
        </Group>
      </Stack>
    </Modal>
  )
}
