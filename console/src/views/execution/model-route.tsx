import { Anchor, Group, Stack, Table, Text } from '@mantine/core'
import type { Agent, GenerationListed, ModelRoute, Project } from '@muster/client'
import {
  deleteModelRoute,
  getModelRoute,
  getProject,
  listAgents,
  listGenerations,
  updateModelRoute,
  updateProject,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useProviders } from '#choices.ts'
import { ActionButton, FormButton } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { RecordLink, TableHead } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Facts, IdLine, Section } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { Loaded } from '#components/states.tsx'
import { Status } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ModelRouteForm, readRoute } from './model-route-form.tsx'

const texts = strings.routes

/** Agents whose turns are read. */
const AGENTS = 5
/** Turns that are read of each agent, and of the project for its default route. */
const TURNS = 100
/** Turns that are listed. */
const SHOWN = 25

/** A model route: its targets in order, what uses it, and how its calls went. */
export function ModelRouteView() {
  const { routeId } = useIds()
  const route = useQuery<Read<ModelRoute>>({
    queryKey: ['model-route', routeId],
    queryFn: ({ signal }) => readRoute(routeId, signal),
  })
  return (
    <Loaded query={route} operation={getModelRoute}>
      {read => <RoutePage read={read} />}
    </Loaded>
  )
}

/** Returns what uses a route: agents, and whether it is the default of the project. */
function useUsers(id: string) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const may = { agents: isAllowed(listAgents) === true, project: isAllowed(getProject) === true }
  return useQuery<{ agents: Agent[]; isDefault: boolean }>({
    queryKey: ['model-route', id, 'users', may],
    queryFn: async ({ signal }) => {
      const [agents, project] = await Promise.all([
        may.agents
          ? listAgents(api, { project_id: projectId, model_route_id: id, limit: TURNS }, { signal }).page()
          : null,
        may.project ? (getProject(api, { project_id: projectId }, { signal }) as PromiseLike<Project>) : null,
      ])
      return { agents: agents?.data ?? [], isDefault: project?.default_model_route_id === id }
    },
  })
}

function RoutePage({ read }: { read: Read<ModelRoute> }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, name } = read.record
  const users = useUsers(id)
  return (
    <Page
      title={name}
      actions={
        <>
          {users.data?.isDefault === false && isAllowed(updateProject) && (
            <ActionButton
              label={texts.makeDefault}
              size="sm"
              question={texts.makeDefaultText}
              run={async () => updateProject(api, { project_id: projectId, default_model_route_id: id })}
              stale={[['model-route', id], ['project']]}
              message={texts.madeDefault}
            />
          )}
          <RemoveButton
            operation={deleteModelRoute}
            ids={{ model_route_id: id }}
            question={texts.deleteText}
            stale={[['model-routes', projectId]]}
            list="model-routes"
          />
          {isAllowed(updateModelRoute) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              form={close => <ModelRouteForm first={read} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <Targets route={read.record} />
      <Section title={texts.usedBy}>
        <Loaded query={users} rows={1}>
          {({ agents, isDefault }) => (
            <Group gap="md">
              {isDefault && (
                <Anchor component={Link} to={`/p/${projectId}/settings`} underline="always">
                  {texts.defaultOf}
                </Anchor>
              )}
              {agents.map(agent => (
                <EntityLink
                  key={agent.id}
                  kind="agent"
                  id={agent.id}
                  projectId={projectId}
                  name={agent.name ?? strings.agents.unnamed}
                />
              ))}
              {!isDefault && agents.length === 0 && <Text c="dimmed">{texts.unused}</Text>}
            </Group>
          )}
        </Loaded>
      </Section>
      {users.data && isAllowed(listGenerations) && <Outcomes route={read.record} users={users.data} />}
    </Page>
  )
}

function Targets({ route }: { route: ModelRoute }) {
  const { id, targets, retry_on, failure_threshold, cooldown_seconds, updated_at } = route
  const { nameOf } = useProviders(useProjectId())
  return (
    <Section title={texts.targets}>
      <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.targets}>
        <TableHead titles={[texts.target, texts.model, texts.timeout, texts.retries]} />
        <Table.Tbody>
          {targets.map(({ ai_provider_id, model, timeout_seconds, max_retries }, index) => (
            <Table.Tr key={index}>
              <Table.Td className="wide">
                <Text fw={600}>
                  {index + 1}. {nameOf(ai_provider_id)}
                </Text>
              </Table.Td>
              <Table.Td data-title={texts.model}>
                <Text className="mono">{visible(model)}</Text>
              </Table.Td>
              <Table.Td data-title={texts.timeout}>{texts.timeoutOf(timeout_seconds)}</Table.Td>
              <Table.Td data-title={texts.retries}>{max_retries ?? 0}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
      <Facts
        facts={[
          [texts.retryOn, retry_on.map(each => texts.classes[each] ?? each).join(', ')],
          [texts.threshold, failure_threshold.toLocaleString()],
          [texts.cooldown, cooldown_seconds.toLocaleString()],
          [strings.updated, <When key="updated" at={updated_at} />],
        ]}
      />
      <IdLine id={id} />
    </Section>
  )
}

type Routed = GenerationListed & { routing: NonNullable<GenerationListed['routing']> }

/** Reads the newest turns of what uses a route, and returns those in which its targets were called. */
function useRoutedTurns(id: string, { agents, isDefault }: { agents: Agent[]; isDefault: boolean }) {
  const projectId = useProjectId()
  const read = [...agents.slice(0, AGENTS).map(agent => agent.id), ...(isDefault ? [undefined] : [])]
  return useQuery<Routed[]>({
    queryKey: ['generations', projectId, 'of-route', id, read],
    queryFn: async ({ signal }) => {
      const pages = await Promise.all(
        read.map(agent_id =>
          listGenerations(api, { project_id: projectId, agent_id, limit: TURNS }, { signal }).page(),
        ),
      )
      const turns = new Map(pages.flatMap(({ data }) => data.map(turn => [turn.id, turn] as const)))
      return [...turns.values()]
        .filter((turn): turn is Routed => turn.routing?.route_id === id)
        .sort((first, second) => second.created_at.localeCompare(first.created_at))
    },
  })
}

type Outcome = { provider: string | null; model: string; answered: number; failures: Map<string, number> }

/** Counts the attempts at each provider with a model: a route that was changed has had other targets. */
function outcomesOf(turns: Routed[]): Outcome[] {
  const outcomes = new Map<string, Outcome>()
  for (const { routing } of turns)
    for (const { ai_provider_id, model, error_class, provider_status_code } of routing.attempts) {
      const key = JSON.stringify([ai_provider_id, model])
      const outcome = outcomes.get(key) ?? { provider: ai_provider_id, model, answered: 0, failures: new Map() }
      outcomes.set(key, outcome)
      if (error_class === null && provider_status_code === null) outcome.answered++
      else {
        const reason = error_class === null ? texts.otherFailure : (texts.classes[error_class] ?? error_class)
        outcome.failures.set(reason, (outcome.failures.get(reason) ?? 0) + 1)
      }
    }
  return [...outcomes.values()]
}

/** How the newest turns with a route went: by target, and those in which one failed. */
function Outcomes({ route, users }: { route: ModelRoute; users: { agents: Agent[]; isDefault: boolean } }) {
  const { nameOf } = useProviders(useProjectId())
  const turns = useRoutedTurns(route.id, users)
  return (
    <Section title={texts.outcomes}>
      <Loaded query={turns} operation={listGenerations}>
        {all => {
          if (all.length === 0) return <Text c="dimmed">{texts.noOutcomes}</Text>
          const uneven = all.filter(({ routing }) => routing.fallbacks > 0 || routing.target_index === null)
          return (
            <Stack gap="lg">
              <Text size="sm" c="dimmed">
                {texts.outcomesOf(all.length)}
              </Text>
              <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.outcomes}>
                <TableHead titles={[texts.target, texts.answered, texts.failures]} />
                <Table.Tbody>
                  {outcomesOf(all).map(({ provider, model, answered, failures }) => (
                    <Table.Tr key={`${provider} ${model}`}>
                      <Table.Td className="wide">
                        <Text fw={600}>
                          {provider && nameOf(provider)} <span className="mono">{visible(model)}</span>
                        </Text>
                      </Table.Td>
                      <Table.Td data-title={texts.answered}>{answered.toLocaleString()}</Table.Td>
                      <Table.Td data-title={texts.failures}>
                        {[...failures].map(([reason, count]) => texts.failed(reason, count)).join(', ') || texts.none}
                      </Table.Td>
                    </Table.Tr>
                  ))}
                </Table.Tbody>
              </Table>
              {uneven.length > 0 ? (
                <UnevenTurns route={route} turns={uneven.slice(0, SHOWN)} />
              ) : (
                <Text>{texts.noFallbacks}</Text>
              )}
            </Stack>
          )
        }}
      </Loaded>
    </Section>
  )
}

/** Turns in which a target failed or was skipped. */
function UnevenTurns({ route, turns }: { route: ModelRoute; turns: Routed[] }) {
  const projectId = useProjectId()
  const answeredBy = (index: number | null) =>
    index === null ? texts.nobody : visible(route.targets[index]?.model ?? texts.removedTarget(index + 1))
  return (
    <Stack gap="xs">
      <Text fw={600}>{texts.turnsText}</Text>
      <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.turns}>
        <TableHead titles={[strings.traces.turn, strings.status, texts.fallbacks, texts.answeredBy, strings.started]} />
        <Table.Tbody>
          {turns.map(({ id, agent_id, agent_name, status, routing, created_at }) => (
            <Table.Tr key={id}>
              <Table.Td className="wide">
                <RecordLink to={`/p/${projectId}/traces/${id}`}>{visible(agent_name ?? agent_id)}</RecordLink>
              </Table.Td>
              <Table.Td data-title={strings.status}>
                <Status status={status} />
              </Table.Td>
              <Table.Td data-title={texts.fallbacks}>{routing.fallbacks.toLocaleString()}</Table.Td>
              <Table.Td data-title={texts.answeredBy}>{answeredBy(routing.target_index)}</Table.Td>
              <Table.Td data-title={strings.started}>
                <When at={created_at} />
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Stack>
  )
}
