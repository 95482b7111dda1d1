import { Badge, Group, Stack, Text, TextInput } from '@mantine/core'
import { notifications } from '@mantine/notifications'
import { type Policy, type PolicyDocument, parseExactJson } from '@muster/client'
import {
  comparePolicyVersions,
  createPolicy,
  deletePolicy,
  getAgent,
  getPolicy,
  listAgents,
  listPolicyAttachments,
  listPolicyVersions,
  restorePolicyVersion,
  updatePolicy,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useDraft, useSent } from '#components/draft.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Read, useGuardedSave } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { PolicyEditor } from '#components/policy-editor.tsx'
import { AddressTabs, Section } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
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
    {
      effect: 'Allow',
      action: [getAgent.action as string, listAgents.action as string],
      resource: [`srn:${projectId}:*:*`],
    },
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

/** A policy: its text with a simulation, its attachments, and its versions. */
export function PolicyView() {
  const { policyId } = useIds()
  const policy = useQuery({
    queryKey: ['policy', policyId],
    queryFn: ({ signal }) => readPolicy(policyId, signal),
    // Never replaces an open edit.
    refetchOnWindowFocus: false,
  })
  return (
    <Loaded query={policy} operation={getPolicy}>
      {first => <PolicyPage first={first} />}
    </Loaded>
  )
}

function PolicyPage({ first }: { first: Read<Policy> }) {
  const projectId = useProjectId()
  const { record, etag } = first
  const { id: policyId } = record
  const mayUpdate = usePermissions(projectId)(updatePolicy)
  const isEditable = !record.managed && mayUpdate
  const key = ['policy', policyId]
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
        !record.managed && (
          <RemoveButton
            operation={deletePolicy}
            ids={{ policy_id: policyId }}
            question={texts.deleteText}
            stale={[['policies']]}
            list="policies"
          />
        )
      }
    >
      <AddressTabs
        tabs={[
          {
            value: 'text',
            title: strings.text,
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
            title: strings.versions,
            content: () => (
              <Versions
                queryKey={key}
                current={record.version}
                ids={{ policy_id: policyId }}
                mayRestore={({ version }) => !record.managed && version !== record.version}
                labelOf={({ description }) => description}
                stale={[key, ['policies']]}
                operations={{
                  list: listPolicyVersions,
                  compare: comparePolicyVersions,
                  restore: restorePolicyVersion,
                }}
              />
            ),
          },
        ]}
      />
    </Page>
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
  // The text of an earlier record would take changes back that others made since.
  const draft = useDraft(`policy ${policy?.updated_at ?? ''}`, {
    name: policy?.name ?? '',
    description: policy?.description ?? '',
    text: JSON.stringify(policy?.document ?? example(projectId), null, 2),
  })
  const { name, description, text } = draft.value
  const set = (change: Partial<typeof draft.value>) => draft.setValue(all => ({ ...all, ...change }))
  const markSent = useSent(draft, { isPending, error })
  const document = parsed(text)
  return (
    <Stack gap="lg">
      <form
        onSubmit={event => {
          event.preventDefault()
          const fields = { name: name.trim() || null, description: description.trim() || null }
          if (!document) return
          markSent()
          onSubmit({ ...fields, document })
        }}
      >
        <Stack gap="md">
          <TextInput label={strings.name} value={name} onChange={event => set({ name: event.currentTarget.value })} />
          <TextInput
            label={texts.description}
            value={description}
            onChange={event => set({ description: event.currentTarget.value })}
          />
          <PolicyEditor
            value={text}
            onChange={text => set({ text })}
            error={document ? undefined : strings.form.notJson}
          />
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
    <Loaded query={attachments} operation={getPolicy}>
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
