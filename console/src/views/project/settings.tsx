import { listAiProviders, listSystemSettings } from '@muster/client/operations'
import { Page } from '#components/page.tsx'
import { AddressTabs } from '#components/record.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Account } from './settings-account.tsx'
import { DeploymentSettings } from './settings-deployment.tsx'
import { ProjectSettings } from './settings-project.tsx'
import { ProviderSettings } from './settings-providers.tsx'

const texts = strings.settings

/** Settings of the project, the account and the deployment. */
export function Settings() {
  const isAllowed = usePermissions(useProjectId())
  const tabs = [
    { value: 'project', title: texts.project, content: () => <ProjectSettings /> },
    ...(isAllowed(listAiProviders)
      ? [{ value: 'providers', title: texts.providers, content: () => <ProviderSettings /> }]
      : []),
    { value: 'account', title: texts.account, content: () => <Account /> },
    ...(isAllowed(listSystemSettings)
      ? [{ value: 'deployment', title: texts.deployment, content: () => <DeploymentSettings /> }]
      : []),
  ]
  return (
    <Page title={strings.nav.settings} intro={texts.intro}>
      <AddressTabs tabs={tabs} />
    </Page>
  )
}
