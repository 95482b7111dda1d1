import { Button } from '@mantine/core'
import { listOrchestrations } from '@muster/client/operations'
import { IconHierarchy, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { api } from '#api.ts'
import { DefinitionList } from '#components/definition-list.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.orchestrations

/** Orchestrations of a project. */
export function Orchestrations() {
  const projectId = useProjectId()
  return (
    <DefinitionList
      kind="orchestrations"
      texts={texts}
      icon={<IconHierarchy />}
      actions={{ list: 'orchestrations:ListOrchestrations', create: 'orchestrations:CreateOrchestration' }}
      read={async (args, options) => listOrchestrations(api, args, options).page()}
      column={{ title: strings.runs.nodes, cell: ({ nodes }) => nodes.length }}
      create={
        <Button component={Link} to={`/p/${projectId}/orchestrations/new`} leftSection={<IconPlus size={16} />}>
          {texts.create}
        </Button>
      }
    />
  )
}
