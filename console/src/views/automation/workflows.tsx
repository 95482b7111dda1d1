import { Button } from '@mantine/core'
import { createWorkflow, listWorkflows } from '@muster/client/operations'
import { IconLayoutKanban, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { DefinitionList } from '#components/definition-list.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.workflows

/** Workflows of a project. */
export function Workflows() {
  const projectId = useProjectId()
  return (
    <DefinitionList
      kind="workflows"
      texts={texts}
      icon={<IconLayoutKanban />}
      operations={{ list: listWorkflows, create: createWorkflow }}
      column={{ title: texts.states, cell: ({ states }) => states.length }}
      isSearched={false}
      create={
        <Button component={Link} to={`/p/${projectId}/workflows/new`} leftSection={<IconPlus size={16} />}>
          {texts.create}
        </Button>
      }
    />
  )
}
