import { Group, Text } from '@mantine/core'
import { AgentLink, EndUserLink } from '#components/end-user-link.tsx'
import * as strings from '#strings.ts'

const texts = strings.inbox

type Fields = Parameters<typeof EndUserLink>[0]['entry'] & { agent_id: string | null; agent_name: string | null }

/** The end user and the agent that an entry of the inbox is about. */
export function Involved({ entry }: { entry: Fields }) {
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
          {texts.agent}: <AgentLink entry={{ agent_id, agent_name }} />
        </Text>
      )}
    </Group>
  )
}
