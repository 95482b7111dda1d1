import { Group, Text } from '@mantine/core'
import { EndUserLink } from '#components/end-user-link.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.inbox

type Fields = Parameters<typeof EndUserLink>[0]['entry'] & { agent_id: string | null; agent_name: string | null }

/** The end user and the agent that an entry of the inbox is about. */
export function Involved({ entry }: { entry: Fields }) {
  const projectId = useProjectId()
  const { actor_id, agent_id, agent_name } = entry
  if (actor_id === null && agent_id === null) return null
  return (
    <Group gap="lg">
      {actor_id !== null && (
        <Text size="sm" component="div">
          {texts.endUser}: <EndUserLink entry={entry} />
        </Text>
      )}
      {agent_id !== null && (
        <Text size="sm" component="div">
          {texts.agent}: <EntityLink kind="agent" id={agent_id} projectId={projectId} name={agent_name ?? undefined} />
        </Text>
      )}
    </Group>
  )
}
