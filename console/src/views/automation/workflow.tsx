import fields from 'fields:updateWorkflow'
import { Badge, Card, Group, Stack, Table, Text } from '@mantine/core'
import type { Workflow, WorkflowPatch } from '@muster/client'
import {
  compareWorkflowVersions,
  deleteWorkflow,
  getWorkflow,
  listWorkflowVersions,
  restoreWorkflowVersion,
  updateWorkflow,
} from '@muster/client/operations'
import { IconEdit, IconPlus } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { api } from '#api.ts'
import { ActionButton, FormButton } from '#components/actions.tsx'
import { CommandForm } from '#components/command-form.tsx'
import { TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { Loaded, Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Board } from './board.tsx'
import { TaskForm } from './task.tsx'

const texts = strings.workflows

/** A workflow: its board, its definition and its versions. */
export function WorkflowView() {
  const { workflowId } = useParams({ strict: false }) as { workflowId: string }
  const workflow = useQuery<Workflow>({
    queryKey: ['workflow', workflowId],
    queryFn: async ({ signal }) => getWorkflow(api, { workflow_id: workflowId }, { signal }),
  })
  return (
    <Loaded query={workflow} action="workflows:GetWorkflow">
      {record => <WorkflowPage workflow={record} />}
    </Loaded>
  )
}

function WorkflowPage({ workflow }: { workflow: Workflow }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const isAllowed = usePermissions(projectId)
  const { id, name, description, version } = workflow
  const actions = (
    <>
      {isAllowed('workflows:DeleteWorkflow') && (
        <ActionButton
          size="sm"
          label={strings.remove}
          question={texts.deleteText}
          run={async () => deleteWorkflow(api, { workflow_id: id })}
          stale={[['workflows', projectId]]}
          onDone={() => void navigate({ to: `/p/${projectId}/workflows` })}
        />
      )}
      {isAllowed('workflows:UpdateWorkflow') && (
        <FormButton
          label={texts.edit}
          variant="default"
          leftSection={<IconEdit size={16} />}
          modalSize="xl"
          form={close => <EditForm workflow={workflow} onDone={close} />}
        />
      )}
      {isAllowed('tasks:CreateTask') && (
        <FormButton
          label={strings.tasks.create}
          leftSection={<IconPlus size={16} />}
          form={close => <TaskForm workflow={workflow} onDone={close} />}
        />
      )}
    </>
  )
  return (
    <Page title={name} intro={description && visible(description)} actions={actions}>
      <AddressTabs
        tabs={[
          {
            value: 'board',
            title: texts.board,
            content: () =>
              isAllowed('tasks:ListTasks') === false ? (
                <Refused action="tasks:ListTasks" />
              ) : (
                <Board workflow={workflow} />
              ),
          },
          {
            value: 'definition',
            title: texts.definition,
            content: () => <Definition workflow={workflow} />,
          },
          {
            value: 'versions',
            title: strings.agents.versions,
            content: () => (
              <Versions
                queryKey={['workflow', id]}
                current={version}
                list={async signal =>
                  (await listWorkflowVersions(api, { workflow_id: id, limit: 100 }, { signal }).page()).data
                }
                compare={async (from, to, signal) =>
                  compareWorkflowVersions(api, { workflow_id: id, from, to }, { signal })
                }
                restore={
                  isAllowed('workflows:RestoreWorkflowVersion')
                    ? async number => restoreWorkflowVersion(api, { workflow_id: id, version: String(number) })
                    : undefined
                }
                stale={[['workflow', id]]}
                actions={{ list: 'workflows:ListWorkflowVersions', get: 'workflows:GetWorkflowVersion' }}
              />
            ),
          },
          {
            value: 'json',
            title: texts.json,
            content: () => <Value value={workflow} label={texts.json} />,
          },
        ]}
      />
    </Page>
  )
}

function EditForm({ workflow, onDone }: { workflow: Workflow; onDone: () => void }) {
  const { id, project_id } = workflow
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {texts.editText}
      </Text>
      <CommandForm
        label={strings.save}
        schema={fields}
        only={['name', 'description', 'states', 'transitions', 'payload_schema']}
        initial={workflow}
        run={async (values: WorkflowPatch) => updateWorkflow(api, { workflow_id: id, ...values })}
        stale={[
          ['workflow', id],
          ['board', id],
          ['workflows', project_id],
        ]}
        onDone={onDone}
      />
    </Stack>
  )
}

/** The states in order with the work that they start and the transitions from them. */
function Definition({ workflow: { states, transitions, payload_schema } }: { workflow: Workflow }) {
  const { kinds, dispatch } = texts
  return (
    <Stack gap="lg">
      <Card withBorder padding={0} radius="lg">
        <Table
          verticalSpacing="sm"
          horizontalSpacing="md"
          className="rows"
          aria-label={texts.definition}
          layout="fixed"
        >
          <TableHead titles={[texts.state, texts.work, texts.transitions]} />
          <Table.Tbody>
            {states.map(({ name, initial, terminal, kind, on_enter }) => (
              <Table.Tr key={name}>
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
