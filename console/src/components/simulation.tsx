import {
  Alert,
  Badge,
  Button,
  Group,
  Input,
  SegmentedControl,
  Select,
  SimpleGrid,
  Stack,
  Text,
  TextInput,
} from '@mantine/core'
import type { PolicyDocument, PolicySimulation } from '@muster/client'
import { listProjectKeys, simulatePolicies } from '@muster/client/operations'
import { IconCircleCheck, IconCircleX } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useActions, usePolicyNames, useUserNames } from '#access.ts'
import { api } from '#api.ts'
import { useMe, usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'
import { useAction } from './actions.tsx'
import { FailureAlert } from './states.tsx'
import { visible } from './text.tsx'
import { Value } from './value.tsx'

const texts = strings.policies

/** The text of a policy that is not saved: null if it is not JSON. */
type Unsaved = { document: PolicyDocument | null; policyId?: string }

/** Simulates a request of a user or key, and shows the statement that decides it. */
export function Simulation({ projectId, unsaved }: { projectId: string; unsaved?: Unsaved }) {
  const isAllowed = usePermissions(projectId)
  const { data: me } = useMe()
  const actions = useActions()
  const { policies, nameOf } = usePolicyNames(projectId)
  const [principal, setPrincipal] = useState<{ kind: 'user' | 'key'; id: string | null }>({ kind: 'user', id: null })
  const [action, setAction] = useState<string | null>(null)
  const [resource, setResource] = useState<string | null>(null)
  const { users } = useUserNames(projectId)
  const keys = useQuery({
    queryKey: ['keys', projectId, 'names'],
    queryFn: async ({ signal }) => listProjectKeys(api, { project_id: projectId }, { signal }).all({ max: 500 }),
    enabled: isAllowed(listProjectKeys) === true,
    staleTime: 10_000,
  })
  const principals =
    principal.kind === 'user'
      ? (users ?? (me ? [me] : [])).map(({ id, username }) => ({ value: id, label: visible(username) }))
      : (keys.data ?? []).map(({ id, name, key_prefix }) => ({ value: id, label: visible(name ?? key_prefix) }))
  const type = actions.find(each => each.action === action)?.resource_type ?? '*'
  const suggested = `srn:${projectId}:${type}:*`
  const simulate = useAction({
    run: async () =>
      simulatePolicies(api, {
        ...(principal.kind === 'user' ? { user_id: principal.id as string } : { key_id: principal.id as string }),
        action: action as string,
        resource: resource ?? suggested,
        ...(unsaved?.document ? { document: unsaved.document, policy_id: unsaved.policyId } : {}),
      }),
  })
  /** The statement that decided in a layer. */
  const statementOf = ({ policy_id, statement_index }: PolicySimulation['layers'][number]) => {
    if (statement_index === null) return undefined
    const isUnsaved = unsaved?.document && (policy_id === null || policy_id === unsaved.policyId)
    const document = isUnsaved ? unsaved.document : policies?.find(({ id }) => id === policy_id)?.document
    return document?.statement[statement_index]
  }
  return (
    <Stack gap="md">
      <Text size="sm" c="dimmed">
        {unsaved ? texts.simulateUnsavedText : texts.simulateText}
      </Text>
      <form
        onSubmit={event => {
          event.preventDefault()
          simulate.mutate()
        }}
      >
        <Stack gap="md">
          <SimpleGrid cols={{ base: 1, sm: 2 }}>
            <Stack gap={4}>
              <Input.Label component="div" mb={-1}>
                {texts.principal}
              </Input.Label>
              <Group gap="sm" wrap="nowrap">
                <SegmentedControl
                  aria-label={texts.principalKind}
                  value={principal.kind}
                  onChange={kind => setPrincipal({ kind: kind as 'user' | 'key', id: null })}
                  data={[
                    { value: 'user', label: texts.user },
                    { value: 'key', label: texts.key },
                  ]}
                />
                <Select
                  aria-label={texts.principal}
                  placeholder={texts.choose}
                  data={principals}
                  value={principal.id}
                  onChange={id => setPrincipal({ ...principal, id })}
                  searchable
                  nothingFoundMessage={strings.nothingFound}
                  flex={1}
                />
              </Group>
            </Stack>
            <Select
              label={texts.action}
              placeholder={texts.choose}
              data={actions.map(each => each.action)}
              value={action}
              onChange={setAction}
              searchable
              limit={50}
              nothingFoundMessage={strings.nothingFound}
            />
          </SimpleGrid>
          <TextInput
            label={texts.resource}
            description={texts.resourceHelp}
            value={resource ?? suggested}
            onChange={event => setResource(event.currentTarget.value)}
            classNames={{ input: 'mono' }}
          />
          <Group>
            <Button
              type="submit"
              loading={simulate.isPending}
              disabled={!principal.id || !action || unsaved?.document === null}
            >
              {texts.simulate}
            </Button>
          </Group>
        </Stack>
      </form>
      {simulate.error && <FailureAlert error={simulate.error} />}
      {simulate.data && (
        <Alert
          role="status"
          color={simulate.data.allowed ? 'teal' : 'red'}
          icon={simulate.data.allowed ? <IconCircleCheck /> : <IconCircleX />}
          title={simulate.data.allowed ? texts.allowed : texts.denied}
        >
          <Stack gap="sm">
            {simulate.data.layers.length === 0 && <Text size="sm">{texts.noLayers}</Text>}
            {simulate.data.layers.map(layer => {
              const statement = statementOf(layer)
              return (
                <Stack gap={4} key={`${layer.kind} ${layer.id}`}>
                  <Group gap="xs">
                    <Badge variant="default">{texts.layers[layer.kind]}</Badge>
                    <Text size="sm">
                      {layer.statement_index === null
                        ? texts.decisions[layer.decision]
                        : texts.decided(
                            texts.decisions[layer.decision],
                            layer.statement_index + 1,
                            layer.policy_id ? visible(nameOf(layer.policy_id)) : texts.unsaved,
                          )}
                    </Text>
                  </Group>
                  {statement && <Value value={statement} label={texts.statement} />}
                </Stack>
              )
            })}
          </Stack>
        </Alert>
      )}
    </Stack>
  )
}
