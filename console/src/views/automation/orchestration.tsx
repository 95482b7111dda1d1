import startFields from 'fields:startRun'
import { Button, Drawer, Group, Stack, Text } from '@mantine/core'
import type { Orchestration, OrchestrationRun } from '@muster/client'
import {
  compareOrchestrationVersions,
  deleteOrchestration,
  getOrchestration,
  getOrchestrationVersion,
  listOrchestrationVersions,
  listRuns,
  restoreOrchestrationVersion,
  startRun,
  updateOrchestration,
} from '@muster/client/operations'
import { IconEdit, IconPlayerPlay, IconPlayerTrackNext } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate } from '@tanstack/react-router'
import { useMemo } from 'react'
import { useIds } from '#address.ts'
import { api, POLL_MS } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { Changes, type Difference } from '#components/changes.tsx'
import { useFilters } from '#components/filters.ts'
import { ListView, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { RecordPage, RemoveButton } from '#components/record-page.tsx'
import { type ObjectSchema, SchemaForm } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { comparedGraph, definitionGraph, nodeOf } from '#graph/definition.ts'
import { FindingList } from '#graph/finding-list.tsx'
import { GraphPanel } from '#graph/graph-panel.tsx'
import { NodeTypeIcon } from '#graph/node-type.tsx'
import type { Definition } from '#graph/run-state.ts'
import { useFindings } from '#graph/validation.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { runColumns } from './runs.tsx'

/** An orchestration: its graph, its versions and its runs. */
export function OrchestrationView() {
  const { orchestrationId: id } = useIds()
  return (
    <RecordPage queryKey={['orchestration', id]} get={getOrchestration} ids={{ orchestration_id: id }}>
      {record => <OrchestrationPage record={record} />}
    </RecordPage>
  )
}

function OrchestrationPage({ record }: { record: Orchestration }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const actions = (
    <>
      <RemoveButton
        operation={deleteOrchestration}
        ids={{ orchestration_id: record.id }}
        question={strings.orchestrations.deleteText}
        stale={[['orchestrations'], ['runs']]}
        list="orchestrations"
      />
      {isAllowed(updateOrchestration) && (
        <Button
          component={Link}
          to={`/p/${projectId}/orchestrations/${record.id}/edit`}
          variant="default"
          leftSection={<IconEdit size={16} />}
        >
          {strings.edit}
        </Button>
      )}
      {isAllowed(startRun) && <StartButton record={record} />}
    </>
  )
  return (
    <Page title={visible(record.name)} intro={record.description && visible(record.description)} actions={actions}>
      <AddressTabs
        tabs={[
          {
            value: 'graph',
            title: strings.runs.graph,
            content: () => <CurrentGraph record={record} />,
          },
          {
            value: 'versions',
            title: strings.versions,
            content: () => <OrchestrationVersions record={record} />,
          },
          ...(isAllowed(listRuns)
            ? [{ value: 'runs', title: strings.nav.runs, content: () => <Runs record={record} /> }]
            : []),
          {
            value: 'json',
            title: strings.json,
            content: () => <Value value={record} label={strings.json} />,
          },
        ]}
      />
    </Page>
  )
}

/** Starts a run, with a form of the input schema where there is one. */
function StartButton({ record: { id, input_schema } }: { record: Orchestration }) {
  const projectId = useProjectId()
  const navigate = useNavigate()
  const schema = input_schema as ObjectSchema | null
  const hasFields = Object.keys(schema?.properties ?? {}).length > 0
  const start = useAction({
    run: async (values: object) =>
      startRun(api, { orchestration_id: id, ...(hasFields ? { input: { ...values } } : values) }),
    stale: [['runs']],
    message: strings.orchestrations.started,
    onDone: (run: OrchestrationRun) => void navigate({ to: `/p/${projectId}/runs/${run.id}` }),
  })
  return (
    <FormButton
      label={strings.orchestrations.start}
      leftSection={<IconPlayerPlay size={16} />}
      form={close => (
        <SchemaForm
          schema={hasFields ? (schema as ObjectSchema) : startFields}
          only={hasFields ? undefined : ['input']}
          at={hasFields ? 'input' : undefined}
          submitLabel={strings.orchestrations.start}
          isPending={start.isPending}
          error={start.error}
          onSubmit={values => start.mutate(values)}
          onCancel={close}
        />
      )}
    />
  )
}

/** The graph of the current version, with what the validator finds in it. */
function CurrentGraph({ record }: { record: Orchestration }) {
  const projectId = useProjectId()
  const { filters, setFilters } = useFilters()
  const { nodes, edges, input_schema, state_schema } = record
  const { findings } = useFindings(projectId, {
    nodes,
    edges,
    ...(input_schema ? { input_schema } : {}),
    ...(state_schema ? { state_schema } : {}),
  })
  const graph = useMemo(() => definitionGraph(record, findings), [record, findings])
  const select = (node?: string) => setFilters({ node })
  const opened = nodes.find(({ id }) => id === filters.node)
  if (nodes.length === 0) return <Notice icon={<IconPlayerTrackNext />} title={strings.orchestrations.noNodes} />
  const all = [...findings.problems, ...findings.warnings]
  return (
    <Stack gap="lg">
      <GraphPanel label={strings.runs.graph} graph={graph} selected={opened?.id ?? null} onSelect={id => select(id)} />
      {all.length > 0 && (
        <Section title={strings.orchestrations.findings}>
          <FindingList
            findings={findings}
            lists={{ nodes: 'nodes', edges: 'edges' }}
            nameOf={(list, place) => (list === 'nodes' ? nodes[place]?.id : undefined)}
            onSelect={(_list, _place, id) => select(id)}
          />
        </Section>
      )}
      <Drawer
        opened={opened !== undefined}
        onClose={() => select()}
        position="right"
        size="lg"
        title={opened && <Text fw={600}>{visible(opened.id)}</Text>}
        overlayProps={{ backgroundOpacity: 0.2 }}
      >
        {opened && (
          <Stack gap="md">
            <Group gap={6}>
              <NodeTypeIcon type={opened.type} size={16} />
              <Text size="sm" c="dimmed">
                {visible(opened.type)}
              </Text>
            </Group>
            {all
              .filter(finding => nodeOf(finding, record) === opened.id)
              .map(({ path, message }, index) => (
                <Text size="sm" key={index}>
                  <span className="mono">{visible(path)}</span> {visible(message)}
                </Text>
              ))}
            <Value value={opened} label={strings.runs.definition} />
          </Stack>
        )}
      </Drawer>
    </Stack>
  )
}

function OrchestrationVersions({ record: { id, version } }: { record: Orchestration }) {
  return (
    <Versions
      queryKey={['orchestration', id]}
      current={version}
      ids={{ orchestration_id: id }}
      stale={[['orchestration', id], ['orchestrations']]}
      operations={{
        list: listOrchestrationVersions,
        compare: compareOrchestrationVersions,
        restore: restoreOrchestrationVersion,
      }}
      differences={(changes, from, to) => <Differences id={id} changes={changes} from={from} to={to} />}
    />
  )
}

const useVersion = (id: string, version: number) =>
  useQuery<Definition>({
    queryKey: ['orchestration', id, 'version', version],
    queryFn: async ({ signal }) =>
      (await getOrchestrationVersion(api, { orchestration_id: id, version: String(version) }, { signal }))
        .config as Definition,
    staleTime: Number.POSITIVE_INFINITY,
  })

/** Two versions on one graph, and their differences as a list. */
function Differences({ id, changes, from, to }: { id: string; changes: Difference[]; from: number; to: number }) {
  const { filters, setFilters } = useFilters()
  const before = useVersion(id, from)
  const after = useVersion(id, to)
  const graph = useMemo(
    () => (before.data && after.data ? comparedGraph(before.data, after.data) : undefined),
    [before.data, after.data],
  )
  return (
    <Stack gap="lg">
      {graph && (
        <GraphPanel
          label={strings.runs.graph}
          graph={graph}
          selected={filters.node ?? null}
          onSelect={node => setFilters({ node })}
        />
      )}
      <Changes changes={changes.filter(({ path }) => !filters.node || isAbout(path, filters.node))} />
      {filters.node && (
        <Group>
          <Button variant="default" size="xs" onClick={() => setFilters({ node: undefined })}>
            {strings.orchestrations.allChanges}
          </Button>
        </Group>
      )}
    </Stack>
  )
}

/** Whether a change is one of a node. */
const isAbout = (path: string, node: string): boolean => path === `nodes.${node}` || path.startsWith(`nodes.${node}.`)

function Runs({ record: { id, name } }: { record: Orchestration }) {
  const projectId = useProjectId()
  const list = useList<OrchestrationRun>(
    ['runs', projectId, id],
    async (_, bounds, signal) => {
      const args = { project_id: projectId, orchestration_id: id, view: 'summary' as const, ...bounds }
      return listRuns(api, args, { signal }).page()
    },
    { pollMs: POLL_MS },
  )
  return (
    <ListView
      label={strings.nav.runs}
      list={list}
      operation={listRuns}
      columns={runColumns(projectId, () => name)}
      empty={
        <Notice icon={<IconPlayerTrackNext />} title={strings.runs.empty} color="indigo">
          {strings.runs.emptyText}
        </Notice>
      }
    />
  )
}
