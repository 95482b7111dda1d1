import { Badge, Group, Stack, Text, TextInput } from '@mantine/core'
import { notifications } from '@mantine/notifications'
import { type Policy, type PolicyDocument, parseExactJson } from '@muster/client'
import {
  comparePolicyVersions,
  createPolicy,
  deletePolicy,
  getPolicy,
  listPolicyAttachments,
  listPolicyVersions,
  restorePolicyVersion,
  updatePolicy,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useNavigate, useParams } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { PolicyEditor } from '#components/policy-editor.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { SubmitRow, type Values } from '#components/schema-form.tsx'
import { Simulation } from '#components/simulation.tsx'
import { Loaded } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.policies

/** What a new policy begins with: it reads the agents of the project. */
const example = (projectId: string): PolicyDocument => ({
  statement: [
    { effect: 'Allow', action: ['agents:GetAgent', 'agents:ListAgents'], resource: [`srn:${projectId}:*:*`] },
  ],
})

/** Reads a policy, and what a later write of it names. */
async function readPolicy(id: string, signal?: AbortSignal): Promise<Read<Policy>> {
  const { data, etag } = await getPolicy(api, { policy_id: id }, { signal }).withResponse()
  return { record: data as Policy, etag }
}

const parsed = (text: string): PolicyDocument | null => {
  try {
    return parseExactJson(text)
  } catch {
    return null
  }
}

export function NewPolicy() {
  const projectId = useProjectId()
  const navigate = useNavigate()
  return (
    <Page title={texts.create} intro={texts.intro}>
      <PolicyForm projectId={projectId} onDone={id => void navigate({ to: `/p/${projectId}/policies/${id}` })} />
    </Page>
  )
}

/** A policy: its text with a simulation, what it is attached to, and its versions. */
export function PolicyView() {
  const projectId = useProjectId()
  const { policyId } = useParams({ strict: false }) as { policyId: string }
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const key = ['policy', policyId]
  const policy = useQuery({
    queryKey: key,
    queryFn: ({ signal }) => readPolicy(policyId, signal),
    // Never replaces what is being edited.
    refetchOnWindowFocus: false,
  })
  return (
    <Loaded query={policy} action="policies:GetPolicy">
      {first => {
        const { record, etag } = first
        const isEditable = !record.managed && isAllowed('policies:UpdatePolicy')
        return (
          <Page
            title={record.name ?? record.id}
            intro={
              <Group gap="xs">
                {record.managed && <Badge variant="default">{texts.managed}</Badge>}
                <span className="mono">{record.id}</span>
              </Group>
            }
            actions={
              !record.managed &&
              isAllowed('policies:DeletePolicy') && (
                <ActionButton
                  label={strings.remove}
                  size="sm"
                  color="red"
                  question={texts.deleteText}
                  run={async () => deletePolicy(api, { policy_id: policyId })}
                  stale={[['policies']]}
                  onDone={() => void navigate({ to: `/p/${projectId}/policies` })}
                />
              )
            }
          >
            <AddressTabs
              tabs={[
                {
                  value: 'text',
                  title: texts.text,
                  content: () =>
                    isEditable ? (
                      <PolicyForm key={etag} projectId={projectId} first={first} />
                    ) : (
                      <Stack gap="lg">
                        <Value value={record.document} label={texts.document} />
                        <Section title={texts.simulate}>
                          <Simulation projectId={projectId} />
                        </Section>
                      </Stack>
                    ),
                },
                {
                  value: 'attachments',
                  title: texts.attachments,
                  content: () => <Attachments projectId={projectId} policyId={policyId} />,
                },
                {
                  value: 'versions',
                  title: strings.agents.versions,
                  content: () => (
                    <Versions
                      queryKey={key}
                      current={record.version}
                      list={async signal => {
                        const page = await listPolicyVersions(
                          api,
                          { policy_id: policyId, limit: 100 },
                          { signal },
                        ).page()
                        return page.data.map(each => ({
                          id: String(each.version),
                          version: each.version,
                          label: each.description,
                          created_at: each.created_at,
                        }))
                      }}
                      compare={async (from, to, signal) =>
                        comparePolicyVersions(api, { policy_id: policyId, from, to }, { signal })
                      }
                      restore={
                        isEditable
                          ? async version =>
                              restorePolicyVersion(api, { policy_id: policyId, version: String(version) })
                          : undefined
                      }
                      stale={[key, ['policies']]}
                      actions={{ list: 'policies:GetPolicy', get: 'policies:GetPolicy' }}
                    />
                  ),
                },
              ]}
            />
          </Page>
        )
      }}
    </Loaded>
  )
}

function PolicyForm({
  projectId,
  first,
  onDone,
}: {
  projectId: string
  first?: Read<Policy>
  onDone?: (id: string) => void
}) {
  const id = first?.record.id
  const { base, formKey, save, dialog, ...state } = useGuardedSave<Policy>({
    title: texts.changed,
    first,
    read: () => readPolicy(id as string),
    write: async (change, options) =>
      id
        ? updatePolicy(api, { ...change, policy_id: id }, options)
        : createPolicy(api, change as Parameters<typeof createPolicy>[1]),
    stale: [['policy'], ['policies']],
    onDone: saved => {
      notifications.show({ message: texts.saved, color: 'teal' })
      onDone?.(saved)
    },
  })
  return (
    <>
      <Editor key={formKey} projectId={projectId} policy={base} onSubmit={save} {...state} />
      {dialog}
    </>
  )
}

function Editor({
  projectId,
  policy,
  isPending,
  error,
  onSubmit,
}: {
  projectId: string
  policy?: Policy
  isPending: boolean
  error: unknown
  onSubmit: (fields: Values) => void
}) {
  const [name, setName] = useState(policy?.name ?? '')
  const [description, setDescription] = useState(policy?.description ?? '')
  const [text, setText] = useState(() => JSON.stringify(policy?.document ?? example(projectId), null, 2))
  const document = parsed(text)
  return (
    <Stack gap="lg">
      <form
        onSubmit={event => {
          event.preventDefault()
          const fields = { name: name.trim() || null, description: description.trim() || null }
          if (document) onSubmit({ ...fields, document })
        }}
      >
        <Stack gap="md">
          <TextInput label={texts.name} value={name} onChange={event => setName(event.currentTarget.value)} />
          <TextInput
            label={texts.description}
            value={description}
            onChange={event => setDescription(event.currentTarget.value)}
          />
          <PolicyEditor value={text} onChange={setText} error={document ? undefined : strings.form.notJson} />
          <SubmitRow
            label={policy ? strings.save : strings.create}
            isPending={isPending}
            error={error}
            disabled={!document}
          />
        </Stack>
      </form>
      <Section title={texts.simulateUnsaved}>
        <Simulation projectId={projectId} unsaved={{ document, policyId: policy?.id }} />
      </Section>
    </Stack>
  )
}

function Attachments({ projectId, policyId }: { projectId: string; policyId: string }) {
  const attachments = useQuery({
    queryKey: ['policy', policyId, 'attachments'],
    queryFn: async ({ signal }) =>
      (await listPolicyAttachments(api, { policy_id: policyId, limit: 100 }, { signal }).page()).data,
  })
  return (
    <Loaded query={attachments} action="policies:GetPolicy">
      {rows =>
        rows.length === 0 ? (
          <Text c="dimmed">{texts.unattached}</Text>
        ) : (
          <Section title={texts.attachments}>
            <Stack gap="xs">
              {rows.map(({ type, id }) => (
                <Group key={id} gap="sm">
                  <Badge variant="default">{visible(type)}</Badge>
                  <EntityLink kind={type} id={id} projectId={projectId} />
                </Group>
              ))}
            </Stack>
          </Section>
        )
      }
    </Loaded>
  )
}
