import importFields from 'fields:importFormationResource'
import { Alert, Badge, Card, Group, Stack, Table, Text } from '@mantine/core'
import type { FormationDrift, FormationOperation, FormationWithResources } from '@muster/client'
import {
  deleteFormation,
  getFormation,
  getFormationDrift,
  importFormationResource,
  listFormationEvents,
  updateFormation,
} from '@muster/client/operations'
import { IconAlertTriangle, IconShield, IconStack2 } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import type { ReactNode } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { FieldChanges } from '#components/field-changes.tsx'
import { RecordLink, TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, LabelledValues, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions } from '#projects.ts'
import { NAVIGATION } from '#shell/navigation.ts'
import * as strings from '#strings.ts'
import { Changes, FormationPlanner } from './formation-plan.tsx'

const texts = strings.formations

const POLL_MS = 15_000
/** Latest operations that are shown. */
const OPERATIONS = 20
const RUNNING = ['creating', 'updating', 'deleting']

/** A formation: resources, drift, plan and operations. */
export function FormationView() {
  const { formationId } = useIds()
  return (
    <RecordPage
      queryKey={['formation', formationId]}
      get={getFormation}
      ids={{ formation_id: formationId }}
      refetchInterval={query => every(RUNNING.includes(query.state.data?.status ?? '') ? BUSY_MS : POLL_MS)(query)}
    >
      {record => <FormationPage formation={record} />}
    </RecordPage>
  )
}

function FormationActions({ formation }: { formation: FormationWithResources }) {
  const { id, project_id, name, status, termination_protection: isProtected } = formation
  const isAllowed = usePermissions(project_id)
  const navigate = useNavigate()
  const isRunning = RUNNING.includes(status)
  const stale = [['formation', id], ['formations']]
  const mayUpdate = isAllowed(updateFormation) && !isRunning
  return (
    <>
      {mayUpdate && (
        <>
          <FormButton
            label={texts.adopt}
            variant="default"
            form={close => <AdoptForm formation={formation} onDone={close} />}
          />
          <ActionButton
            size="sm"
            leftSection={<IconShield size={16} />}
            label={isProtected ? texts.unprotect : texts.protect}
            question={isProtected && texts.unprotectText}
            run={async () =>
              updateFormation(api, { formation_id: id, termination_protection: !isProtected, wait: false })
            }
            stale={stale}
          />
        </>
      )}
      {isAllowed(deleteFormation) && !isRunning && !isProtected && (
        <ActionButton
          size="sm"
          color="red"
          label={strings.remove}
          question={texts.deleteText(visible(name))}
          run={async () => {
            await deleteFormation(api, { formation_id: id })
            await navigate({ to: `/p/${project_id}/formations`, replace: true })
          }}
          stale={[['formations']]}
        />
      )}
    </>
  )
}

function FormationPage({ formation }: { formation: FormationWithResources }) {
  const { id, project_id, name, status, error, termination_protection: isProtected } = formation
  const isAllowed = usePermissions(project_id)
  const isRunning = RUNNING.includes(status)
  return (
    <Page
      title={name}
      intro={
        <Group gap="sm">
          <StatusBadge status={status} />
          {isProtected && <Badge variant="default">{texts.protected}</Badge>}
        </Group>
      }
      actions={<FormationActions formation={formation} />}
    >
      {error && (
        <Alert color="red" icon={<IconAlertTriangle />} title={texts.failed}>
          <Text size="sm">{visible(error.message)}</Text>
          <Text size="sm" className="mono">
            {error.code}
          </Text>
          {error.meta && <Value value={error.meta} label={texts.failed} />}
        </Alert>
      )}
      <AddressTabs
        tabs={[
          {
            value: 'resources',
            title: texts.resources,
            content: () => <Resources formation={formation} />,
          },
          ...(isAllowed(getFormationDrift)
            ? [
                {
                  value: 'plan',
                  title: texts.planTab,
                  content: () => <FormationPlanner projectId={project_id} formation={formation} />,
                },
                { value: 'drift', title: texts.drift, content: () => <Drift id={id} /> },
              ]
            : []),
          {
            value: 'operations',
            title: texts.operations,
            content: () => <Operations id={id} isRunning={isRunning} />,
          },
          { value: 'record', title: strings.record, content: () => <Record formation={formation} /> },
        ]}
      />
    </Page>
  )
}

/** A table in a card, which becomes cards on a phone. */
function Rows({ label, titles, children }: { label: string; titles: string[]; children: ReactNode }) {
  return (
    <Card withBorder padding={0} radius="lg">
      <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={label}>
        <TableHead titles={titles} />
        <Table.Tbody>{children}</Table.Tbody>
      </Table>
    </Card>
  )
}

/** Returns the view of a resource, where the console has one. */
function viewOf(projectId: string, type: string, id: string): string | null {
  const path = `${type.replaceAll('_', '-')}s`
  return NAVIGATION.some(view => view.path === path) ? `/p/${projectId}/${path}/${id}` : null
}

function Resources({ formation: { project_id, resources } }: { formation: FormationWithResources }) {
  const tracked = resources.filter(({ status }) => status !== 'deleted')
  if (tracked.length === 0) return <Notice icon={<IconStack2 />} title={texts.noResources} />
  return (
    <Rows label={texts.resources} titles={[texts.logicalId, texts.resourceType, strings.state, texts.physicalId]}>
      {tracked.map(({ id, logical_id, resource_type, physical_resource_id, status }) => {
        const view = physical_resource_id && viewOf(project_id, resource_type, physical_resource_id)
        return (
          <Table.Tr key={id}>
            <Table.Td>
              <Text fw={600}>{visible(logical_id)}</Text>
            </Table.Td>
            <Table.Td data-title={texts.resourceType}>{visible(resource_type)}</Table.Td>
            <Table.Td>
              <StatusBadge status={status} />
            </Table.Td>
            <Table.Td>
              {view ? (
                <RecordLink to={view}>
                  <Text span className="mono">
                    {physical_resource_id}
                  </Text>
                </RecordLink>
              ) : (
                <Text span className="mono">
                  {physical_resource_id ?? strings.none}
                </Text>
              )}
            </Table.Td>
          </Table.Tr>
        )
      })}
    </Rows>
  )
}

function Drift({ id }: { id: string }) {
  const drift = useQuery<FormationDrift>({
    queryKey: ['formation', id, 'drift'],
    queryFn: async ({ signal }) => getFormationDrift(api, { formation_id: id }, { signal }),
    staleTime: 60_000,
  })
  return (
    <Loaded query={drift} operation={getFormationDrift}>
      {({ drifted, resources }) => (
        <Section
          title={drifted ? texts.drifted : texts.inSync}
          actions={
            <ActionButton
              label={texts.checkAgain}
              run={async () => {
                const { error } = await drift.refetch()
                if (error) throw error
              }}
            />
          }
        >
          <Text c="dimmed">{texts.driftText}</Text>
          {resources.map(({ logical_id, resource_type, status, diff }) => (
            <Card
              key={logical_id}
              withBorder
              padding="md"
              radius="md"
              component="article"
              aria-label={visible(logical_id)}
            >
              <Stack gap="sm">
                <Group gap="sm">
                  <StatusBadge status={status} />
                  <Text fw={600}>{visible(logical_id)}</Text>
                  <Text size="sm" c="dimmed" className="mono">
                    {visible(resource_type)}
                  </Text>
                </Group>
                {diff && status === 'drifted' && <FieldChanges before={diff.desired} after={diff.current} />}
              </Stack>
            </Card>
          ))}
        </Section>
      )}
    </Loaded>
  )
}

function Operations({ id, isRunning }: { id: string; isRunning: boolean }) {
  const operations = useQuery<FormationOperation[]>({
    // The end of an operation makes the list stale.
    queryKey: ['formation', id, 'operations', isRunning],
    queryFn: async ({ signal }) => {
      const args = { formation_id: id, limit: OPERATIONS }
      const { data, total } = await listFormationEvents(api, args, { signal }).page()
      if (total <= OPERATIONS) return data.toReversed()
      const latest = { ...args, offset: total - OPERATIONS }
      return (await listFormationEvents(api, latest, { signal }).page()).data.toReversed()
    },
    placeholderData: previous => previous,
    refetchInterval: query => (isRunning ? every(BUSY_MS)(query) : false),
  })
  return (
    <Loaded query={operations} operation={listFormationEvents}>
      {rows => (
        <Stack gap="md">
          {rows.map(operation => (
            <Operation key={operation.id} operation={operation} />
          ))}
        </Stack>
      )}
    </Loaded>
  )
}

function Operation({ operation }: { operation: FormationOperation }) {
  const { operation_type, status, plan, events, error, created_at } = operation
  return (
    <Section
      title={texts.operationTypes[operation_type]}
      actions={
        <Group gap="sm">
          <StatusBadge status={status} />
          <Text size="sm" c="dimmed" component="div">
            <When at={created_at} />
          </Text>
          {plan && (
            <FormButton
              label={texts.showPlan}
              size="xs"
              variant="default"
              modalSize="xl"
              form={() => <Changes plan={{ changes: plan }} />}
            />
          )}
        </Group>
      }
    >
      {error && (
        <Text size="sm">
          {visible(error.message)} <span className="mono">{error.code}</span>
        </Text>
      )}
      {(events ?? []).map(event => (
        <Group gap="sm" key={`${event.timestamp} ${event.logical_id} ${event.action}`}>
          <StatusBadge status={event.status} />
          <Text size="sm" className="mono">
            {event.action}
          </Text>
          <Text size="sm" fw={600}>
            {visible(event.logical_id)}
          </Text>
          <Text size="sm" c="dimmed">
            {visible(event.resource_type)}
          </Text>
          {event.error && <Text size="sm">{visible(event.error.message)}</Text>}
        </Group>
      ))}
      {status === 'running' && (events ?? []).length === 0 && <Text c="dimmed">{texts.starting}</Text>}
    </Section>
  )
}

function AdoptForm({ formation, onDone }: { formation: FormationWithResources; onDone: () => void }) {
  const { id, template, resources } = formation
  const tracked = new Set(resources.filter(({ status }) => status !== 'deleted').map(({ logical_id }) => logical_id))
  const free = Object.keys((template.resources ?? {}) as object).filter(name => !tracked.has(name))
  const adopt = useAction<Values>({
    run: async values =>
      importFormationResource(api, {
        ...(values as { logical_id: string; physical_resource_id: string }),
        formation_id: id,
      }),
    stale: [['formation', id]],
    message: texts.adopted,
    onDone,
  })
  return (
    <Stack gap="md">
      <Text c="dimmed">{texts.adoptText}</Text>
      <SchemaForm
        schema={importFields}
        options={free.length > 0 ? { logical_id: free.map(value => ({ value, label: visible(value) })) } : undefined}
        submitLabel={texts.adopt}
        isPending={adopt.isPending}
        error={adopt.error}
        onSubmit={values => adopt.mutate(values)}
        onCancel={onDone}
      />
    </Stack>
  )
}

function Record({ formation }: { formation: FormationWithResources }) {
  const { id, template, outputs, resolved_parameters, resolved_metadata, created_at, updated_at } = formation
  const values: [string, unknown][] = [
    [texts.outputs, outputs],
    [texts.parameters, resolved_parameters],
    [texts.metadata, resolved_metadata],
    [texts.template, template],
  ]
  return (
    <Section title={strings.record}>
      <Facts
        facts={[
          [strings.created, <When key="created" at={created_at} />],
          [strings.updated, <When key="updated" at={updated_at} />],
        ]}
      />
      <LabelledValues values={values} />
      <IdLine id={id} />
    </Section>
  )
}
