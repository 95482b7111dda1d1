import { Button } from '@mantine/core'
import { listAgents } from '@muster/client/operations'
import { IconPlus, IconRobot } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api } from '#api.ts'
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
      actions={{ list: 'agents:ListAgents', create: 'agents:CreateAgent' }}
      read={async (args, options) => listAgents(api, args, options).page()}
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
