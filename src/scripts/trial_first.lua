local i,n,r,m=0,0,0,0
while i<COUNT do
i=i+1
COMMANDS()
