import { Button } from '@mantine/core'
import { createAgent, listAgents } from '@muster/client/operations'
import { IconPlus, IconRobot } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { DefinitionList } from '#components/definition-list.tsx'
import { visible } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.agents

/** Agents of a project. */
export function Agents() {
  const projectId = useProjectId()
  return (
    <DefinitionList
      kind="agents"
      texts={texts}
      icon={<IconRobot />}
      operations={{ list: listAgents, create: createAgent }}
      column={{
        title: texts.model,
        cell: ({ model }) => (model ? <span className="mono">{visible(model)}</span> : texts.defaultModel),
      }}
      create={
        <Button component={Link} to={`/p/${projectId}/agents/new`} leftSection={<IconPlus size={16} />}>
          {texts.create}
        </Button>
      }
    />
  )
}
