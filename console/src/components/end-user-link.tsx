import { Text } from '@mantine/core'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { EntityLink } from './entity-link.tsx'
import { visible } from './text.tsx'

/** Fields of a list entry that name its end user; the names are null for those who may not read them. */
type EndUserFields = { actor_id: string | null; actor_name: string | null; actor_external_id: string | null }

/** Fields of an entry that name its agent; the name is null for those who may not read it. */
type AgentFields = { agent_id: string; agent_name: string | null }

/** The name of the agent of an entry as a link; the ID where the name is not known. */
export function AgentLink({ entry: { agent_id, agent_name } }: { entry: AgentFields }) {
  const projectId = useProjectId()
  return <EntityLink kind="agent" id={agent_id} projectId={projectId} name={agent_name ?? undefined} />
}

/** The name of the end user of an entry as a link to its page, with its external ID; the ID where the name is not known. */
export function EndUserLink({ entry }: { entry: EndUserFields }) {
  const projectId = useProjectId()
  const { actor_id, actor_name, actor_external_id } = entry
  if (actor_id === null) return <>{strings.none}</>
  return (
    <>
      <EntityLink kind="actor" id={actor_id} projectId={projectId} name={actor_name ?? undefined} />
      {actor_external_id !== null && (
        <Text size="xs" c="dimmed" className="mono">
          {visible(actor_external_id)}
        </Text>
      )}
    </>
  )
}
