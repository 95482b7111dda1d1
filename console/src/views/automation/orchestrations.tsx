import { Button } from '@mantine/core'
import { createOrchestration, listOrchestrations } from '@muster/client/operations'
import { IconHierarchy, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
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
      operations={{ list: listOrchestrations, create: createOrchestration }}
      column={{ title: strings.runs.nodes, cell: ({ nodes }) => nodes.length }}
      create={
        <Button component={Link} to={`/p/${projectId}/orchestrations/new`} leftSection={<IconPlus size={16} />}>
          {texts.create}
        </Button>
      }
    />
  )
}
