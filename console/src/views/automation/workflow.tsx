import { Badge, Button, Card, Group, Stack, Table, Text } from '@mantine/core'
import type { Workflow } from '@muster/client'
import {
  compareWorkflowVersions,
  createTask,
  deleteWorkflow,
  getWorkflow,
  listTasks,
  listWorkflowVersions,
  restoreWorkflowVersion,
  updateWorkflow,
} from '@muster/client/operations'
import { IconEdit, IconPlus } from '@tabler/icons-react'
import { Link } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import { useIds } from '#address.ts'
import { FormButton } from '#components/actions.tsx'
import { TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { GraphPanel } from '#graph/graph-panel.tsx'
import { workflowGraph } from '#graph/workflow-graph.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Board } from './board.tsx'
import { TaskForm } from './task.tsx'

const texts = strings.workflows

/** A workflow: its board, its definition and its versions. */
export function WorkflowView() {
  const { workflowId } = useIds()
  return (
    <RecordPage queryKey={['workflow', workflowId]} get={getWorkflow} ids={{ workflow_id: workflowId }}>
      {record => <WorkflowPage workflow={record} />}
    </RecordPage>
  )
}

function WorkflowActions({ workflow }: { workflow: Workflow }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  return (
    <>
      <RemoveButton
        operation={deleteWorkflow}
        ids={{ workflow_id: workflow.id }}
        question={texts.deleteText}
        stale={[['workflows', projectId]]}
        list="workflows"
      />
      {isAllowed(updateWorkflow) && (
        <Button
          component={Link}
          to={`/p/${projectId}/workflows/${workflow.id}/edit`}
          variant="default"
          leftSection={<IconEdit size={16} />}
        >
          {strings.edit}
        </Button>
      )}
      {isAllowed(createTask) && (
        <FormButton
          label={strings.tasks.create}
          leftSection={<IconPlus size={16} />}
          form={close => <TaskForm workflow={workflow} onDone={close} />}
        />
      )}
    </>
  )
}

function WorkflowPage({ workflow }: { workflow: Workflow }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, name, description, version } = workflow
  return (
    <Page title={name} intro={description && visible(description)} actions={<WorkflowActions workflow={workflow} />}>
      <AddressTabs
        tabs={[
          {
            value: 'board',
            title: texts.board,
            content: () =>
              isAllowed(listTasks) === false ? <Refused operation={listTasks} /> : <Board workflow={workflow} />,
          },
          {
            value: 'definition',
            title: texts.definition,
            content: () => <Definition workflow={workflow} />,
          },
          {
            value: 'versions',
            title: strings.versions,
            content: () => (
              <Versions
                queryKey={['workflow', id]}
                current={version}
                ids={{ workflow_id: id }}
                stale={[['workflow', id]]}
                operations={{
                  list: listWorkflowVersions,
                  compare: compareWorkflowVersions,
                  restore: restoreWorkflowVersion,
                }}
              />
            ),
          },
          {
            value: 'json',
            title: strings.json,
            content: () => <Value value={workflow} label={strings.json} />,
          },
        ]}
      />
    </Page>
  )
}

function StateRow({
  state: { name, initial, terminal, kind, on_enter },
  transitions,
}: {
  state: Workflow['states'][number]
  transitions: Workflow['transitions']
}) {
  const { kinds, dispatch } = texts
  return (
    <Table.Tr>
      <Table.Td>
        <Group gap={6}>
          <Text fw={600}>{visible(name)}</Text>
          {initial && <Badge variant="default">{kinds.initial}</Badge>}
          {terminal && <Badge variant="default">{kinds.terminal}</Badge>}
          {kind === 'human' && <Badge variant="default">{kinds.human}</Badge>}
        </Group>
      </Table.Td>
      <Table.Td data-title={texts.work}>
        {on_enter ? (
          <>
            <Text size="sm">{dispatch[on_enter.dispatch.kind]}</Text>
            <Text size="xs" className="mono" c="dimmed">
              {visible(
                on_enter.dispatch.agent_id ??
                  on_enter.dispatch.orchestration_id ??
                  on_enter.dispatch.tool_id ??
                  on_enter.dispatch.trigger_id ??
                  '',
              )}
            </Text>
          </>
        ) : (
          strings.none
        )}
      </Table.Td>
      <Table.Td>
        {transitions
          .filter(({ from }) => from.includes(name))
          .map(each => (
            <Text size="sm" key={each.name}>
              {visible(each.name)} → {visible(each.to)}
              {each.requires_approval && ` (${texts.approval})`}
            </Text>
          ))}
      </Table.Td>
    </Table.Tr>
  )
}

/** The states as a graph, and in order with the work that they start and the transitions from them. */
function Definition({ workflow }: { workflow: Workflow }) {
  const { states, transitions, payload_schema } = workflow
  const graph = useMemo(() => workflowGraph(workflow), [workflow])
  const [selected, setSelected] = useState<string | null>(null)
  return (
    <Stack gap="lg">
      <GraphPanel label={texts.graph} graph={graph} selected={selected} onSelect={setSelected} isBare height={420} />
      <Card withBorder padding={0} radius="lg">
        <Table
          verticalSpacing="sm"
          horizontalSpacing="md"
          className="rows"
          aria-label={texts.definition}
          layout="fixed"
        >
          <TableHead titles={[strings.state, texts.work, texts.transitions]} />
          <Table.Tbody>
            {states.map(state => (
              <StateRow key={state.name} state={state} transitions={transitions} />
            ))}
          </Table.Tbody>
        </Table>
      </Card>
      {payload_schema && (
        <Section title={texts.payload}>
          <Value value={payload_schema} label={texts.payload} />
        </Section>
      )}
    </Stack>
  )
}
