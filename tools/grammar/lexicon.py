# ruff: noqa: E501 - tables are read by row
"""The words: four tables to read, correct or shrink, and nothing else.

A row is a word. A dash means "no such form". The last column of a noun names its classes and the
last of an adjective the noun classes that it may stand with; the frames of `sentences` select by
the same names. Removing a row removes the word, provided that no frame names it. The parts of a compound are joined
by "_": the last English and the first French word is the noun ("AI_model", "modèle_de_IA").
"""

from __future__ import annotations

#  english  plural      | french       plural         gender | classes
NOUNS = """
man         men         | homme        hommes         m | person adult
woman       women       | femme        femmes         f | person adult
boy         boys        | garçon       garçons        m | person
girl        girls       | fille        filles         f | person
child       children    | enfant       enfants        m | person
king        kings       | roi          rois           m | person adult
queen       queens      | reine        reines         f | person adult
teacher     teachers    | professeur   professeurs    m | person adult
doctor      doctors     | médecin      médecins       m | person adult
student     students    | étudiant     étudiants      m | person adult
wizard      wizards     | sorcier      sorciers       m | person adult
friend      friends     | ami          amis           m | kin ally
brother     brothers    | frère        frères         m | kin
sister      sisters     | sœur         sœurs          f | kin
mother      -           | mère         -              f | kin
father      -           | père         -              m | kin

animal      animals     | animal       animaux        m | beast large
dog         dogs        | chien        chiens         m | beast pet kept large colored
cat         cats        | chat         chats          m | beast pet climber kept colored
horse       horses      | cheval       chevaux        m | beast kept large colored
bird        birds       | oiseau       oiseaux        m | beast pet colored
bear        bears       | ours         ours           m | beast climber large
wolf        wolves      | loup         loups          m | beast climber large
owl         owls        | hibou        hiboux         m | beast pet
cow         cows        | vache        vaches         f | beast kept colored
mouse       mice        | souris       souris         f | beast pet climber colored
turtle      turtles     | tortue       tortues        f | beast pet climber
goat        goats       | chèvre       chèvres        f | beast climber kept colored
hen         hens        | poule        poules         f | beast pet kept colored
giraffe     giraffes    | girafe       girafes        f | beast large

road        roads       | route        routes         f | way
street      streets     | rue          rues           f | way in
river       rivers      | rivière      rivières       f | stream near
lake        lakes       | lac          lacs           m | stream near
bridge      bridges     | pont         ponts          m | bridge near under
tunnel      tunnels     | tunnel       tunnels        m | bridge hollow
field       fields      | champ        champs         m | land in
valley      valleys     | vallée       vallées        f | land in
hill        hills       | colline      collines       f | height on_foot
mountain    mountains   | montagne     montagnes      f | height on_foot
river_bank  river_banks | berge_de_la_rivière berges_de_la_rivière f | shore on near
wall        walls       | mur          murs           m | height barrier behind
rock        rocks       | rocher       rochers        m | height barrier behind

house       houses      | maison       maisons        f | building in near behind goal kept
school      schools     | école        écoles         f | building in near goal
church      churches    | église       églises        f | building room in near goal
bank        banks       | banque       banques        f | building in near goal
museum      museums     | musée        musées         m | building room in near goal
station     stations    | gare         gares          f | building in near goal
hotel       hotels      | hôtel        hôtels         m | building room in near goal
kitchen     kitchens    | cuisine      cuisines       f | room in
garden      gardens     | jardin       jardins        m | in goal
cave        caves       | grotte       grottes        f | hollow in
pool        pools       | piscine      piscines       f | basin near behind goal
world       worlds      | monde        mondes         m | sphere
tree        trees       | arbre        arbres         m | plant near behind under

bread       -           | pain         -              m | food dry_food perishable
cheese      -           | fromage      -              m | food dry_food perishable
meat        -           | viande       -              f | food dry_food perishable
soup        -           | soupe        -              f | food spicy_food
rice        -           | riz          -              m | food spicy_food
chocolate   -           | chocolat     -              m | food
cake        cakes       | gâteau       gâteaux        m | food count_food perishable sugared
apple       apples      | pomme        pommes         f | food sour_food count_food reddish perishable
orange      oranges     | orange       oranges        f | food sour_food count_food perishable
lemon       lemons      | citron       citrons        m | food sour_food count_food
carrot      carrots     | carotte      carottes       f | food hard_food count_food perishable
egg         eggs        | œuf          œufs           m | food hard_food count_food perishable

milk        -           | lait         -              m | drink perishable
water       -           | eau          -              f | drink
coffee      -           | café         -              m | drink sugared brewed
tea         -           | thé          -              m | drink sugared brewed
juice       -           | jus          -              m | drink perishable sugared
wine        -           | vin          -              m | drink
beer        -           | bière        -              f | drink brewed
lemonade    -           | limonade     -              f | drink sugared

bed         beds        | lit          lits           m | furniture thing on under
sofa        sofas       | canapé       canapés        m | furniture thing on behind
chair       chairs      | chaise       chaises        f | furniture thing on under
bench       benches     | banc         bancs          m | furniture on under
mat         mats        | tapis        tapis          m | furniture thing on
table       tables      | table        tables         f | thing under surface
box         boxes       | boîte        boîtes         f | container thing
bag         bags        | sac          sacs           m | container thing
suitcase    suitcases   | valise       valises        f | container thing
door        doors       | porte        portes         f | opening behind
window      windows     | fenêtre      fenêtres       f | opening
key         keys        | clé          clés           f | thing small_thing
book        books       | livre        livres         m | thing small_thing text fitting written print
letter      letters     | lettre       lettres        f | small_thing text written
newspaper   newspapers  | journal      journaux       m | small_thing text print
story       stories     | histoire     histoires      f | text tale
song        songs       | chanson      chansons       f | tale
hat         hats        | chapeau      chapeaux       m | thing small_thing clothes fitting
coat        coats       | manteau      manteaux       m | thing clothes fitting
shirt       shirts      | chemise      chemises       f | thing clothes
dress       dresses     | robe         robes          f | thing clothes fitting
flower      flowers     | fleur        fleurs         f | small_thing reddish blossom
rose        roses       | rose         roses          f | small_thing reddish blossom
gift        gifts       | cadeau       cadeaux        m | thing small_thing fitting
lamp        lamps       | lampe        lampes         f | thing fitting
car         cars        | voiture      voitures       f | vehicle thing
truck       trucks      | camion       camions        m | vehicle
bus         buses       | bus          bus            m | vehicle
plane       planes      | avion        avions         m | vehicle flying

AI          -           | IA           -              f | science
model       models      | modèle       modèles        m | artefact
AI_model    AI_models   | modèle_de_IA modèles_de_IA  m | artefact
"""

#  english     | masculine  feminine  plurals          before a vowel | place  | noun classes
ADJECTIVES = """
big            | grand grande grands grandes                | before | large building plant thing basin sphere
small          | petit petite petits petites | before | beast building plant thing count_food basin sphere
beautiful      | beau belle beaux belles bel | before | building plant clothes tale beast blossom flying shore sphere
new            | nouveau nouvelle nouveaux nouvelles nouvel | before | thing clothes vehicle text building ally artefact
old            | vieux vieille vieux vieilles vieil | before | adult beast thing vehicle building kin
young          | jeune jeune jeunes jeunes                  | before | person
good           | bon bonne bons bonnes                      | before | food drink text tale ally artefact
red            | rouge rouge rouges rouges                  | after  | clothes vehicle reddish
white          | blanc blanche blancs blanches | after | clothes vehicle colored blossom
black          | noir noire noirs noires                    | after  | clothes vehicle colored
green          | vert verte verts vertes                    | after  | clothes opening container
tired          | fatigué fatiguée fatigués fatiguées        | after  | person beast
sick           | malade malade malades malades              | after  | person beast
lazy           | paresseux paresseuse paresseux paresseuses | after  | person beast
nervous        | nerveux nerveuse nerveux nerveuses         | after  | person beast
happy          | heureux heureuse heureux heureuses         | after  | person beast
sad            | triste triste tristes tristes              | after  | person beast tale
curious        | curieux curieuse curieux curieuses         | after  | person beast
brave          | courageux courageuse courageux courageuses | after  | person beast
greedy         | gourmand gourmande gourmands gourmandes    | after  | person beast
wide           | large large larges larges                  | after  | way stream land
narrow         | étroit étroite étroits étroites            | after  | way bridge hollow
long           | long longue longs longues                  | before | tale text bridge
slippery       | glissant glissante glissants glissantes    | after  | way shore
deep           | profond profonde profonds profondes        | after  | stream hollow basin
high           | haut haute hauts hautes                    | before | height
steep          | raide raide raides raides                  | after  | height
low            | bas basse bas basses                       | after  | barrier
salty          | salé salée salés salées                    | after  | spicy_food dry_food
spicy          | épicé épicée épicés épicées                | after  | spicy_food
dry            | sec sèche secs sèches                      | after  | dry_food
sweet          | sucré sucrée sucrés sucrées                | after  | sugared
sour           | acide acide acides acides                  | after  | sour_food
bitter         | amer amère amers amères                    | after  | brewed
fresh          | frais fraîche frais fraîches               | after  | perishable
cold           | froid froide froids froides                | after  | drink spicy_food
hard           | dur dure durs dures                        | after  | furniture hard_food
comfortable    | confortable confortable confortables confortables | after | furniture
expensive      | cher chère chers chères                    | after  | clothes vehicle furniture
heavy          | lourd lourde lourds lourdes                | after  | container
slow           | lent lente lents lentes                    | after  | vehicle artefact
crowded        | bondé bondée bondés bondées                | after  | room
cool           | cool cool cool cool                        | after  | person tale print vehicle clothes artefact science
important      | important importante importants importantes | after  | person text artefact science
easy           | facile facile faciles faciles              | after  | activity
fun            | amusant amusante amusants amusantes        | after  | activity
"""

#  english forms               | tenses | french: infinitive, then where it is irregular the
#                                        | present (je il nous vous ils); participle; future stem
# Tenses: p present, d past (d! imparfait, as for states), f future, i infinitive (after can and
# want to), c command, h habit (goes with "every day"). "+être" takes être; a second English or
# French word is carried along ("look for", "entrer dans").
VERBS = """
eat       eats       ate        | pdfihc| manger
drink     drinks     drank      | pdfihc| boire bois boit buvons buvez boivent; bu; boir
cross     crosses    crossed    | pdfi  | traverser
climb     climbs     climbed    | pdfi  | escalader
see       sees       saw        | pdfih | voir vois voit voyons voyez voient; vu; verr
like      likes      liked      | p     | aimer
want      wants      wanted     | pd!   | vouloir veux veut voulons voulez veulent; voulu; voudr
have      has        had        | pd!f  | avoir ai a avons avez ont; eu; aur
buy       buys       bought     | pdfih | acheter achète achète achetons achetez achètent; acheté; achèter
sell      sells      sold       | pdfi  | vendre vends vend vendons vendez vendent; vendu; vendr
find      finds      found      | df    | trouver
lose      loses      lost       | df    | perdre perds perd perdons perdez perdent; perdu; perdr
take      takes      took       | pdfic | prendre prends prend prenons prenez prennent; pris; prendr
open      opens      opened     | pdfic | ouvrir ouvre ouvre ouvrons ouvrez ouvrent; ouvert; ouvrir
close     closes     closed     | pdfic | fermer
build     builds     built      | pdfic | construire construis construit construisons construisez construisent; construit; construir
train     trains     trained    | pdfic | entraîner
read      reads      read       | dfic  | lire lis lit lisons lisez lisent; lu; lir
write     writes     wrote      | pdfi  | écrire écris écrit écrivons écrivez écrivent; écrit; écrir
look_for  looks_for  looked_for | pdfc  | chercher
wait_for  waits_for  waited_for | pdfc  | attendre attends attend attendons attendez attendent; attendu; attendr
listen_to listens_to listened_to| pdfc  | écouter
help      helps      helped     | pdfic | aider
know      knows      knew       | p     | connaître connais connaît connaissons connaissez connaissent; connu; connaîtr
give      gives      gave       | pdf   | donner
show      shows      showed     | pdf   | montrer
send      sends      sent       | pdf   | envoyer envoie envoie envoyons envoyez envoient; envoyé; enverr
sleep     sleeps     slept      | pdfi  | dormir dors dort dormons dormez dorment; dormi; dormir
sing      sings      sang       | pdfih | chanter
work      works      worked     | pdfih | travailler
cry       cries      cried      | pdf   | pleurer
swim      swims      swam       | pdfih | nager
go        goes       went       | pdfih | aller+être vais va allons allez vont; allé; ir
come      comes      came       | pdfh  | venir+être viens vient venons venez viennent; venu; viendr
arrive    arrives    arrived    | pdf   | arriver+être
leave     leaves     left       | pdfi  | partir+être pars part partons partez partent; parti; partir
fall      falls      fell       | df    | tomber+être
stay      stays      stayed     | pdfi  | rester+être
enter     enters     entered    | pdf   | entrer_dans+être
sit       sits       sat        | d     | s'asseoir+être - - - - -; assis; -
fit_in    fits_in    fit_in     | pd!   | tenir_dans tiens tient tenons tenez tiennent; tenu; tiendr
be        is         was        | pd!f  | être suis est sommes êtes sont; été; ser
"""


#  english | gender: people keep their English names
NAMES = """
Mary   | f
Susan  | f
Alice  | f
Emma   | f
Paul   | m
David  | m
Thomas | m
Lucas  | m
Harry  | m
"""
